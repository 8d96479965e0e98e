"""A plugin of pytest that records which lines of the package ran, for `coverage report`.

    python -m pytest -p dev.executed_lines

Before Python 3.12, coverage's own tracing slows down every line of Python in the process, torch's and sympy's included:
tests of `sharing/` took 1.6 times as long. Here statements of the package alone get a probe when a module is imported,
which costs less than a tenth of that. Processes that tests start are not recorded.
"""

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from coverage import CoverageData

PACKAGE = "deepshare"
PROBE = "__executed__"
DATA = Path(__file__).parents[1] / "build" / "coverage"
FILES: list[str] = []
LINES = 1 << 20  # more than any file has: a line of file f is f * LINES + line
SEEN: set[int] = set()
SEE = SEEN.add


def with_probes(source: str | bytes, first: int) -> ast.Module:
    """Parse a module, with `PROBE(first + line)` before each statement."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                probed = [part for statement in block for part in (*_probes(statement, first), statement)]
                setattr(node, name, probed)
        if isinstance(node, ast.ExceptHandler | ast.match_case):  # lines that coverage counts, and no statements
            head = node if isinstance(node, ast.ExceptHandler) else node.pattern
            node.body.insert(0, _probe(first + head.lineno, node.body[0]))
    return tree


def _probes(statement: ast.stmt, first: int) -> list[ast.Expr]:
    said = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if said or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
        return []  # a docstring has no code, and nothing may stand before imports from the future
    lines = [part.lineno for part in (*getattr(statement, "decorator_list", ()), statement)]
    return [_probe(first + line, statement) for line in lines]


def _probe(number: int, place: ast.stmt) -> ast.Expr:
    call = ast.Expr(ast.Call(ast.Name(PROBE, ast.Load()), [ast.Constant(number)], []))
    for node in ast.walk(call):
        ast.copy_location(node, place)
    return call


class ProbingLoader(SourceFileLoader):
    """Compiles a module with probes, always from its source."""

    def get_code(self, fullname: str) -> CodeType:
        """The module's code."""
        path = self.get_filename(fullname)
        FILES.append(path)
        code: CodeType = compile(with_probes(self.get_data(path), (len(FILES) - 1) * LINES), path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which finds the probe among its globals."""
        setattr(module, PROBE, SEE)
        super().exec_module(module)


class ProbingFinder(MetaPathFinder):
    """Finds modules of the package where they are, and has them loaded with probes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, if it is one of the package."""
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = ProbingLoader(spec.loader.name, spec.loader.path)
        return spec


def executed() -> dict[str, set[int]]:
    """Lines that ran, by file."""
    found: dict[str, set[int]] = {path: set() for path in FILES}
    for number in SEEN:
        found[FILES[number // LINES]].add(number % LINES)
    return found


def pytest_collection_finish() -> None:
    """Let torch.compile leave probes out of its graphs."""
    import torch._dynamo.config

    torch._dynamo.config.ignore_logging_functions.add(SEE)


def pytest_unconfigure() -> None:
    """Write what this process saw, for `coverage combine`."""
    data = CoverageData(str(DATA), suffix=True)
    data.add_lines(executed())
    data.write()


sys.meta_path.insert(0, ProbingFinder())
