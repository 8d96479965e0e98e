"""Show examples in docstrings as code, wherever they stand in the docstring."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*| *\n(?= *>>>))*", re.MULTILINE)


class Examples(griffe.Extension):
    """Puts a fence around each of them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of whatever was read."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
