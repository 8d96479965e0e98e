"""The page, parsed and compared with the runs."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from deepshare.data import ImageSet
from deepshare.private.cost import Cost, Layer
from deepshare.private.runtime.outcome import Part
from deepshare.sharing.gates import prototype_of
from deepshare.study import report
from deepshare.study.published import paper
from deepshare.study.report import Run
from deepshare.study.report.frontier import colour
from deepshare.study.report.private_cost import ENGINE, Predicted, sent
from deepshare.study.samples import Examples, predict_samples
from deepshare.text import byte_size
from deepshare.training.recipe.files import load_recipe
from tests.browser import chromium
from tests.study.report.parsed_page import Element, parse


@pytest.fixture(scope="module")
def page(shared: Run) -> Element:
    return parse(report.page([shared]))


@pytest.fixture(scope="module")
def both(shared: Run, plain: Run) -> Element:
    return parse(report.page([shared, plain]))


@pytest.mark.parametrize("name", ["page", "both"])
def test_nothing_is_fetched(request: pytest.FixtureRequest, name: str) -> None:
    shown: Element = request.getfixturevalue(name)
    assert not [one for one in shown if one.tag in ("script", "link", "iframe", "object", "embed", "base", "use")]
    for one in shown:
        for key, value in one.attributes.items():
            if key in ("href", "src"):
                assert value is not None and value.startswith(("#", "data:image/png;base64,"))
            assert "://" not in (value or ""), (one.tag, key)
            assert "url(" not in (value or ""), (one.tag, key)
    style = shown.find("style")[0].text
    assert "url(" not in style and "@import" not in style and "://" not in style


def test_the_head_says_the_runs_own_figures(page: Element, shared: Run) -> None:
    tiles = [(tile.find("strong")[0].text, tile.find("span")[0].text) for tile in page.find("div", "tile")]
    assert tiles[0] == (f"{shared.score:.2%}", "of 300 test images right")
    assert tiles[1] == (f"{shared.gates:,}", f"gates of {shared.neurons:,} ReLUs ({shared.gates / shared.neurons:.2%})")
    assert tiles[2][0] == "7"
    facts = {one.find("dt")[0].text: one.find("dd")[0].text for one in page.find("dl")[0].find("div")}
    assert facts["data"] == "digits"
    assert facts["network"] == "resnet18 (depth 10, width 8, channels 1)"
    assert "budget.gates 20%" in facts["changed in the recipe"]
    assert "gelu.epochs 2" in facts["changed in the recipe"]


def test_the_day_is_that_of_the_runs_own_record_or_left_out(shared: Run, tiny_run: Path, tmp_path: Path) -> None:
    assert shared.date == json.loads((tiny_run / "result.json").read_text())["date"]
    older = tmp_path / "run"
    shutil.copytree(tiny_run, older)
    result = {key: value for key, value in shared.result.items() if key != "date"}
    (older / "result.json").write_text(json.dumps(result))
    where = shared.environment["gpu"] or shared.environment["cpu"]
    for run, said in ((shared, f"{where}, {shared.date}"), (report.read([older])[0], where)):
        facts = parse(report.page([run])).find("dl")[0].find("div")
        assert {one.find("dt")[0].text: one.find("dd")[0].text for one in facts}["trained on"] == said


def test_a_network_keeps_its_name() -> None:
    (run,) = report.read([Path("digits-resnet10-192")])
    facts = parse(report.page([run])).find("dl")[0]
    assert (run.name, facts.find("dd")[0].text) == ("digits-resnet10-192", "digits-resnet10-192")


def test_a_teacher_that_was_trained_elsewhere_is_not_among_the_epochs(page: Element, shared: Run) -> None:
    alone = parse(report.page([replace(shared, strands=shared.strands[1:])]))
    said = [shown.find("div", "tile")[2].text for shown in (page, alone)]
    assert said[0].startswith("7 epochs in all, ")
    assert said[1].startswith("6 epochs without those of its teacher, ")


def test_a_run_is_called_what_it_is(shared: Run, plain: Run) -> None:
    packaged, other = load_recipe("digits"), load_recipe("digits", {"budget.gates": "10%"})
    figures = {**shared.result, "gates": 192, "neurons": 1_920}
    ten = replace(shared, recipe=other, result=figures)
    worded = replace(ten, recipe=load_recipe("digits", {"budget.gates": "10%", "about": "Twice as many gates"}))
    for run, title in (
        (replace(ten, recipe=packaged), packaged.about),
        (replace(ten, recipe=load_recipe("digits", {"seed": 3})), packaged.about),
        (ten, "resnet18 (depth 10, width 16, channels 1) on digits with 10% of its ReLUs"),
        (worded, "Twice as many gates"),
        (plain, "The plain resnet18 (depth 10, width 8, channels 1) on digits"),
    ):
        shown = parse(report.page([run]))
        assert shown.find("h1")[0].text == title
        assert shown.find("title")[0].text.startswith(title)
        assert title in [one.text for one in parse(report.page([run, plain])).find("p")]
    method = other.method.model_copy(update={"name": "snl"})
    snl = replace(ten, recipe=other.model_copy(update={"method": method}))
    assert parse(report.page([snl])).find("h1")[0].text.startswith("snl: resnet18")


def test_every_prototype_is_a_cell_and_every_other_channel_a_replicate(page: Element, shared: Run) -> None:
    assert shared.plan is not None
    groups = page.find("g", "group")
    assert len(groups) == len(shared.plan.groups)
    for drawn, group in zip(groups, shared.plan.groups, strict=True):
        assert len(drawn.find("rect", "prototype")) == group.prototypes
        replicates = sum(int(one.attributes["data-channels"] or 0) for one in drawn.find("path", "replicate"))
        assert replicates == sum(site.channels for site in group.sites) - group.prototypes
        assert len(drawn.find("path", "arrow")) == len(group.followers)
        assert [one.text for one in drawn.find("text", "site")] == [site.name for site in group.sites]
        assert drawn.find("text", "gates")[0].text == f"{group.gates:,} gates"


def test_a_replicate_has_the_colour_of_its_prototype(page: Element, shared: Run) -> None:
    assert shared.plan is not None
    group, drawn = shared.plan.groups[-1], page.find("g", "group")[-1]
    colours = [one.attributes["style"] for one in drawn.find("rect", "prototype")]
    assert len(set(colours)) == group.prototypes > 2
    pi = prototype_of(group.leader.channels, group.prototypes, shared.plan.mapping)
    for path in drawn.find("path", "replicate"):
        number = colours.index(path.attributes["style"])
        leads = path.find("title")[0].text.startswith(f"{group.leader.name}:")
        assert int(path.attributes["data-channels"] or 0) == int((pi == number).sum()) - leads
        moves = re.findall(r"M([\d.]+) ", path.attributes["d"] or "")
        assert len(moves) == int(path.attributes["data-channels"] or 0)


def test_curves_have_a_point_for_every_epoch(page: Element, shared: Run) -> None:
    curves = page.part("Training curves")
    phases = [(band.find("title")[0].text, band.find("text")[0].text) for band in curves.find("g", "band")]
    assert phases == [
        ("teacher: 1 epoch", "teacher"),
        ("gelu: 2 epochs", "gelu"),
        ("switch: 2 epochs", "switch"),
        ("finetune: 2 epochs", "finetune"),
    ]
    hard = curves.find("path", "gates")
    assert len(hard) == 1  # the teacher has no gates
    places = [[float(number) for number in pair.split()] for pair in (hard[0].attributes["d"] or "")[1:].split("L")]
    shares = [line["hard_share"] for line in shared.strands[-1].lines]
    low, high = places[0][1], places[-1][1]
    assert [(low - y) / (low - high) for _, y in places] == pytest.approx(shares, abs=1e-2)
    assert f"validation accuracy {shared.validation:.2%}" in curves.text


def test_bars_say_what_groups_spend(page: Element, shared: Run) -> None:
    assert shared.plan is not None
    rows = page.part("Gate budget").rows()
    assert [(row[0], row[2], row[4]) for row in rows] == [
        (group.leader.name, f"{group.gates:,}", f"{sum(site.neurons for site in group.sites):,}")
        for group in shared.plan.groups
    ]


def test_every_channel_is_a_dot(page: Element, shared: Run) -> None:
    assert shared.plan is not None
    panels = page.part("Affine parameters").find("svg", "affine")
    assert len(panels) == len(shared.plan.sites)
    for kind, count in (
        ("prototype", sum(group.prototypes for group in shared.plan.groups)),
        ("replicate", sum(site.channels for site in shared.plan.sites) - sum(g.prototypes for g in shared.plan.groups)),
    ):
        dots = sum((path.attributes["d"] or "").count("h0") for panel in panels for path in panel.find("path", kind))
        assert dots == count


def test_costs_are_in_the_tables(page: Element, shared: Run) -> None:
    assert isinstance(shared.predicted, Predicted)
    part = page.part("Cost of private inference")
    rows = part.rows()
    for network, costs, row in (
        ("this one", shared.predicted.costs, rows[0]),
        ("plain", shared.predicted.plain, rows[1]),
    ):
        cost = costs[ENGINE]
        assert isinstance(cost, Cost)
        online, offline = byte_size(sent(cost.online)), byte_size(sent(cost.offline))
        expected = [network, online, offline, f"{cost.online.rounds:,}", f"{cost.online.comparisons:,}"]
        assert row[1:6] == expected
    layers = part.find("details")[0].rows()
    cost = shared.predicted.costs[ENGINE]
    assert isinstance(cost, Cost)
    shown = {row[0]: (int(row[2]), row[4], row[6]) for row in layers}
    for layer, before in zip(cost.layers, shared.predicted.offline, strict=True):
        if sent(layer.part) or before:
            assert shown.pop(layer.name) == (layer.part.rounds, byte_size(sent(layer.part)), byte_size(before))
    assert shown == {}


def test_layers_are_open_where_they_are_few_and_of_the_only_run(shared: Run, page: Element, both: Element) -> None:
    def bills(shown: Element) -> list[Element]:
        return [one for one in shown.find("details") if one.find("summary")[0].text.startswith("Layer by layer")]

    assert ["open" in one.attributes for one in bills(page)] == [True]
    assert ["open" in one.attributes for one in bills(both)] == [False, False]
    assert isinstance(shared.predicted, Predicted)
    cost = shared.predicted.costs[ENGINE]
    assert isinstance(cost, Cost)
    longer = replace(
        shared.predicted, costs={**shared.predicted.costs, ENGINE: replace(cost, layers=cost.layers * 3)}, plain={}
    )
    longer = replace(longer, offline=longer.offline * 3, elements=longer.elements * 3)
    shown = bills(parse(report.page([replace(shared, predicted=longer)])))
    assert ["open" in one.attributes for one in shown] == [False]


def test_what_was_measured_is_shown(shared: Run) -> None:
    cost = Cost("gateshare", 4, (Layer("fc", "Linear", Part(0, 40, 20, 0, 3, 28)),), Part(dealer_bytes=8), seconds=2.5)
    tables = parse(report.page([replace(shared, measured={"evening": cost})])).find("table", "measured")
    assert [cell.text for cell in tables[0].find("td")] == [
        *("evening", "gateshare", "4", "625 ms", "15 B", "2 B", "3", "7", "")
    ]


def test_samples_are_cards(page: Element, shared: Run) -> None:
    assert not isinstance(shared.samples, str)
    cards = page.part("Sample predictions").find("figure", "card")
    samples = (*shared.samples.first, *shared.samples.mistakes)
    assert len(cards) == len(samples)
    for card, sample in zip(cards, samples, strict=True):
        guess, sure = sample.guesses[0]
        assert card.find("div", "guess")[0].text == f"{guess} {sure:.1%}"
        assert ("right" in card.classes) == sample.right
        assert len(card.find("img")) == 1
    assert f"Of the first 256 test images {256 - shared.samples.wrong} are right." in page.text


def test_a_plain_run_has_no_plan_and_no_alpha(plain: Run) -> None:
    shown = parse(report.page([plain]))
    titles = [one.text for one in shown.find("h3")]
    assert "Shared gates" not in titles
    assert "Affine parameters" not in titles
    assert f"All {plain.neurons:,} ReLUs are there." in shown.text


def test_several_runs_are_side_by_side(both: Element, shared: Run, plain: Run) -> None:
    rows = both.part("Side by side").rows()
    for row, run in zip(rows, (shared, plain), strict=True):
        assert (row[0], row[4], row[6]) == (run.name, f"{run.gates:,}", f"{run.score:.2%}")
    targets = {link.attributes["href"] for link in both.find("a")}
    assert targets == {f"#{one.attributes['id']}" for one in both.find("article")}
    assert len(both.find("path", "ours")) == 2
    assert [one.text for one in both.find("h2")] == [shared.name, plain.name]


def test_runs_are_called_by_their_folders(shared: Run, plain: Run) -> None:
    one, other = replace(shared, name="long/way/to/a"), replace(plain, name="long/way/to/b")
    shown = parse(report.page([one, other]))
    assert [one.text for one in shown.find("h2")] == ["a", "b"]
    assert [row[0] for row in shown.part("Side by side").rows()] == ["a", "b"]
    alone = parse(report.page([one])).find("dl")[0].find("div")[0]
    assert (alone.find("dt")[0].text, alone.find("dd")[0].text) == ("run", "a")


def test_names_are_escaped(tiny_run: Path, tmp_path: Path) -> None:
    name = """a<script>"&'b"""
    run = tmp_path / name
    shutil.copytree(tiny_run, run)
    recipe = (run / "recipe.toml").read_text()
    about = "<img src=x onerror=alert(1)> & </title><b>"
    (run / "recipe.toml").write_text(re.sub(r'about = ".*"', f'about = "{about}"', recipe))
    report.write([run, tiny_run], tmp_path / "page.html")
    shown = parse((tmp_path / "page.html").read_text())
    assert not shown.find("script")
    assert about in shown.text
    assert name in [label.text for label in shown.find("text", "ours")]
    assert not [one for one in shown if "onerror" in one.attributes]


def test_the_papers_points_are_beside_ours(shared: Run) -> None:
    recipe = load_recipe("cifar100-resnet18-6k")
    shown = parse(report.page([replace(shared, recipe=recipe)]))
    results = paper.load().find("resnet18", "cifar100")
    assert results is not None
    titles = [circle.find("title")[0].text for circle in shown.find("circle", "paper")]
    assert titles == [
        f"{row.method}, ResNet-18: {row.score:g}% with {row.gates_k:g}K ReLUs (table 1)" for row in results.rows
    ]
    assert f"The paper's ResNet-18 has 491,520 ReLUs, the one trained here {shared.neurons:,}" in shown.text
    rows = shown.part("Accuracy against gates").find("details")[0].rows()
    assert rows[-1] == ["DeepShare", "6", "76.13"]
    full = replace(shared, recipe=recipe, result={**shared.result, "neurons": 491_520})
    assert "another size" not in report.page([full])


def test_a_lone_run_has_no_chart_of_one_point(shared: Run) -> None:
    assert "against gates" not in parse(report.page([shared])).text


def test_the_saving_of_gateshare_is_explained(shared: Run) -> None:
    said = re.findall(r"With ([\w-]+) fewer gates hardly reduce what is sent online", parse(report.page([shared])).text)
    assert "gateshare" in said and "crypten" not in said


def test_nothing_runs_off_a_phone(shared: Run, plain: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report.page([shared, plain]), encoding="utf-8")
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 420, "height": 900})
        tab.goto(page.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") == 420
        charts = tab.evaluate("[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().right)")
        assert charts and max(charts) <= 420


def test_every_method_of_the_paper_has_a_colour() -> None:
    style = (Path(report.__file__).parent / "style.css").read_text()
    for method in paper.load().methods:
        assert re.search(rf"^\.{colour(method)} {{", style, re.MULTILINE), method


def test_runs_on_two_data_sets_have_two_charts(shared: Run, plain: Run) -> None:
    other = replace(plain, recipe=load_recipe("cifar100-resnet18"))
    shown = parse(report.page([shared, other]))
    assert [one.text for one in shown.find("h3")].count("Accuracy against gates") == 2


def test_segmentation_is_measured_by_miou(shared: Run) -> None:
    last = shared.strands[-1]
    lines = tuple({**line, "val_miou": 0.5} for line in last.lines)
    figures = {**shared.result, "test": {"last": {"miou": 0.4, "n": 300}}}
    segmented = replace(shared, strands=(replace(last, lines=lines),), result=figures)
    shown = parse(report.page([replace(segmented, recipe=load_recipe("ade20k-deeplabv3-2556k"))]))
    assert "mIoU, of 300 test images" in shown.text
    assert shown.part("mIoU against gates").find("svg")[0].attributes["aria-label"] == "mIoU against gates"


class Bright(nn.Module):
    """Says class 1 where the first channel is bright, class 0 elsewhere."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.stack([-images[:, 0], images[:, 0]], 1)


def test_scenes_show_image_truth_and_prediction(shared: Run) -> None:
    images = torch.zeros(12, 3, 6, 8, dtype=torch.uint8)
    images[:, :, :, 4:] = 255
    labels = torch.zeros(12, 6, 8, dtype=torch.uint8)
    labels[:, :, 6:] = 1  # two of four bright columns
    labels[:, 0] = 255
    source = ImageSet("scenes", images, labels, ("dark", "bright"), (0.5,) * 3, (0.5,) * 3, ignore=255)
    samples = predict_samples(Bright(), Examples(source, None))
    assert samples.looked == len(samples.scenes) == 3
    assert [scene.number for scene in samples.scenes] == [2, 6, 10]
    assert [scene.accuracy for scene in samples.scenes] == [0.75] * 3
    shown = parse(report.page([replace(shared, samples=samples)])).part("Sample predictions")
    for figure in shown.find("figure", "scene"):
        assert [len(part.find("img")) for part in figure.find("div")] == [1] * 3
        assert [part.text for part in figure.find("div")] == ["image", "truth", "predicted"]
    assert "75.0% of its labelled pixels right" in shown.text
    keys = {key.text: key.find("i")[0].attributes["style"] for key in shown.find("p", "legend")[0].find("span")}
    assert list(keys) == ["dark", "bright", "no class"]
    assert keys["no class"] == "background:rgb(0,0,0)"
