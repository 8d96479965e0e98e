"""Blocks and commands on the pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def blocks(page: Path, language: str) -> list[re.Match[str]]:
    return list(re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL))


def shell_lines(page: Path) -> list[str]:
    lines = (line for block in blocks(page, "sh") for line in block[1].splitlines())
    return [line for line in lines if line.strip() and not line.startswith("#")]


def inline_commands(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [found.replace("\n", " ") for found in re.findall(r"`((?:deepshare|python|make) [^`]+)`", text)]


def run_python(page: Path) -> int:
    """Run the Python blocks of a page in their order, as one program, and count them."""
    text, found = page.read_text("utf-8"), blocks(page, "python")
    namespace: dict[str, object] = {"__name__": "page"}
    for block in found:
        # Empty lines before the block, so that a traceback points into the page.
        padding = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(padding + block[1], str(page), "exec"), namespace)
    return len(found)
