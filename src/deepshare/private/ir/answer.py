"""The answer that a client gets: scores of all classes, or the best classes alone."""

from typing import Literal, get_args

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program, TopClasses

Revealed = Literal["class", "top5", "logits"]

_PLACES = {"class": 1, "top5": 5}


def with_answer(program: Program, revealed: Revealed) -> Program:
    """Return the program that gives this answer instead of logits.

    Raises:
        EngineError: There is no such answer, or the network has too few classes for it.
    """
    if revealed not in get_args(Revealed):
        raise EngineError(f"no answer is named {revealed}: take one of {', '.join(get_args(Revealed))}")
    if revealed == "logits":
        return program
    places, shape = _PLACES[revealed], program.operations[-1].shape
    if shape[0] <= places:
        raise EngineError(f"the answer {revealed} chooses among more classes than the network's {shape[0]}: use logits")
    last = len(program.operations) - 1
    return Program((*program.operations, TopClasses("answer", (last,), (places, *shape[1:]), shape[0])))


def describe_answer(program: Program) -> str:
    """What a client learns, in words."""
    if not program.hides_scores:
        return "logits"
    places = program.operations[-1].shape[0]
    return "the class alone" if places == 1 else f"the {places} best classes alone"
