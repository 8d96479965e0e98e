"""The share of lines that `make test` prints: probes see the lines that coverage counts, and change nothing else."""

import ast
from pathlib import Path

from coverage import Coverage, CoverageData

from dev.executed_lines import LINES, PROBE, with_probes

SOURCE = '''"""Docstring."""

import functools


class Kind:
    """Docstring."""

    x: int = 1

    @functools.cache
    def of(
        self, y: int
    ) -> str:
        """Docstring."""
        if y > 1:
            return "large"
        elif y == 1:
            return (
                "one"
            )
        else:
            for _ in range(y): pass
        try:
            raise ValueError
        except ValueError:
            match y:
                case 0:
                    return "nothing"
                case _:
                    return "less"
        finally:
            y = 2


def never():
    return 3


said = Kind().of(0)
'''


def test_probes_see_the_lines_that_coverage_counts(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    seen: set[int] = set()
    names = {PROBE: seen.add, "__name__": "module"}
    exec(compile(with_probes(SOURCE, 3 * LINES), str(file), "exec"), names)
    assert names["said"] == "nothing"
    data = CoverageData(str(tmp_path / "data"))
    data.add_lines({str(file): {number - 3 * LINES for number in seen}})
    data.write()
    report = Coverage(str(tmp_path / "data"))
    report.load()
    _, statements, _, missing, _ = report.analysis2(str(file))
    lines = SOURCE.splitlines()
    never = ['return "large"', "return (", "case _:", 'return "less"', "return 3"]
    assert [lines[number - 1].strip() for number in missing] == never
    assert len(statements) == 22


def test_a_module_keeps_its_docstrings_and_its_lines() -> None:
    before, after = ast.parse(SOURCE), with_probes(SOURCE, 0)
    assert ast.get_docstring(after) == "Docstring."
    kept = [node.lineno for node in ast.walk(after) if isinstance(node, ast.stmt) and not is_probe(node)]
    assert kept == [node.lineno for node in ast.walk(before) if isinstance(node, ast.stmt)]


def is_probe(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(PROBE)
