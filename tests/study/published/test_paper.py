"""Every number of the data file against the paper's own tables."""

import re
from pathlib import Path

import pytest

from deepshare.study.published import paper
from deepshare.zoo import build

PAPER = Path(__file__).parents[4] / "shared" / "paper" / "deepshare.tex"
SPELLING = {"AutoRep": "AutoReP", "DeepReduce": "DeepReDuce", "DeepShare (Ours)": "DeepShare"}
SETUPS = {
    "CIFAR-100, ResNet 18": ("resnet18", "cifar100"),
    "CIFAR-100, Wide-ResNet 22-8": ("wrn22-8", "cifar100"),
    "Tiny-ImageNet, ResNet 18": ("resnet18", "tiny-imagenet"),
}

needs_paper = pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not beside the project")


def printed(table: int) -> list[list[str]]:
    """The rows of a table of the paper that hold a number, without empty cells."""
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", PAPER.read_text(), re.DOTALL)
    body = re.sub(r"\\(mid|top|bottom)rule|\\multirow\{\d\}\{\*\}", "", tables[table - 1])
    rows = [re.sub(r"\\textbf\{([^}]*)\}", r"\1", row).split("&") for row in body.split(r"\\")]
    cells = [[cell.strip().strip("{}") for cell in row if cell.strip()] for row in rows]
    return [row for row in cells if row and re.fullmatch(r"\d+(\.\d+)?", row[-1])]


@needs_paper
@pytest.mark.parametrize("results", paper.load().results, ids=lambda results: f"table {results.table}")
def test_the_tables_that_compare(results: paper.PublishedTable) -> None:
    expected = []
    for row in printed(results.table):
        numbers = [float(cell) for cell in row if re.fullmatch(r"\d+(\.\d+)?", cell)]
        method = row[-1 - len(numbers)]
        expected.append((SPELLING.get(method, method), *numbers))
    found = [(row.method, row.gates_k, row.score, row.ratio) for row in results.rows]
    assert [tuple(value for value in row if value is not None) for row in found] == expected
    assert len(expected) == {1: 19, 2: 10, 3: 16, 4: 3}[results.table]


@needs_paper
def test_the_ablations() -> None:
    ablations = paper.load().ablations
    assert [[row.method, str(row.score)] for row in ablations.rows] == printed(ablations.table)


@needs_paper
def test_the_latencies() -> None:
    expected, setup = [], ("", "")
    for row in printed(paper.load().latency.table):
        setup = SETUPS.get(row[0], setup)
        expected.append((*setup, *map(float, row[-3:])))
    rows = paper.load().latency.rows
    assert [(row.network, row.data, row.gates_k, row.autorep, row.deepshare) for row in rows] == expected
    assert len(expected) == 7


def test_a_ratio_is_score_by_gates() -> None:
    # The paper cuts digits off some of its ratios and rounds others; 190K and 65.2% is 0.343 and printed as 0.35.
    for results in paper.load().results:
        for row in results.rows:
            if row.ratio is not None:
                assert abs(row.ratio - row.score / row.gates_k) < 0.011, row


def test_tables_are_found_by_the_names_of_recipes() -> None:
    found = paper.load().find("resnet18", "cifar100")
    assert found is not None
    assert (found.table, found.baseline.gates) == (1, 491_520)
    assert [row.gates for row in found.of("DeepShare")] == [6_000, 12_900, 49_900]
    assert paper.load().find("resnet18", "digits") is None


@pytest.mark.parametrize("name", sorted({results.network for results in paper.load().results}))
def test_networks_are_named_as_in_the_zoo(name: str) -> None:
    build(name, num_classes=2)


def test_architecture_searches_are_marked() -> None:
    marked = {row.method for results in paper.load().results for row in results.rows if row.own_network}
    assert marked == {"CryptoNAS", "Sphynx", "Seesaw", "HybReNet"}
