"""The public part of a network as a file: all that a dealer has to know."""

import json
from pathlib import Path

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.files import write_atomically
from deepshare.private.engines.gateshare.fixedpoint import ComparisonBits, NumberFormat, calibrate
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program


def write(
    path: Path, program: Program, samples: Tensor | None = None, comparison_bits: ComparisonBits | None = None
) -> None:
    """Write the outline and the number format of a network.

    Args:
        path: The file.
        program: With its weights.
        samples: Images to measure ranges on; without any, synthetic ones.
        comparison_bits: Bits of a comparison; by default all of the range.

    Raises:
        EngineError: The file cannot be written.
    """
    content = {"outline": outline.dump(program), "numbers": calibrate(program, samples, comparison_bits).dump()}
    try:
        write_atomically(path, json.dumps(content).encode())
    except OSError as error:
        raise EngineError(f"{path} cannot be written ({error.strerror}): give another place") from error


def read(path: Path) -> tuple[Program, NumberFormat]:
    """Read what `write` wrote.

    Raises:
        EngineError: It is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        program = outline.parse(content["outline"])
    except OSError as error:
        cure = "make one with deepshare private outline"
        raise EngineError(f"{path} cannot be read ({error.strerror}): {cure}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} is no outline: make one with deepshare private outline") from error
    return program, NumberFormat.parse(content.get("numbers"), program)
