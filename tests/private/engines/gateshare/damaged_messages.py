"""Messages of which one or two things are others, twice there, or missing."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.integers() | st.just(10**400) | st.floats()


ANY = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4) | st.just("ab" * 16),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a message: what holds it, and where."""
    for key in range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ():
        yield value, key
        yield from places(value[key])


@st.composite
def changed(draw: st.DrawFn, message: dict[str, Any]) -> dict[str, Any]:
    """A message of which one or two things are others, twice there, or missing."""
    result = deepcopy(message)
    for _ in range(draw(st.integers(1, 2))):
        found = list(places(result))
        if not found:
            break
        holder, key = draw(st.sampled_from(found))
        kind = draw(st.sampled_from(["other", "other", "twice", "gone"]))
        if kind == "other":
            holder[key] = draw(ANY)
        elif kind == "twice" and isinstance(holder, list):
            holder.insert(key, deepcopy(holder[key]))
        else:
            del holder[key]
    return result
