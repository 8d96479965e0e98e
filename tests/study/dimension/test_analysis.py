"""The gate analysis, from a network and its images to numbers."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import deepshare
from deepshare import zoo
from deepshare.errors import CheckpointError, DataError, DeepShareError
from deepshare.sharing.sites import Site
from deepshare.study.dimension.analysis import _positions, measure, measure_run
from deepshare.study.dimension.summary import Quantiles
from tests.training.small_runs import SMALL

SIZE = (2, 4, 4)
TRAINING = SMALL["data.subset"]


def network() -> nn.Sequential:
    torch.manual_seed(3)
    first, second = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))


def one_layer(weight: list[float], bias: list[float]) -> nn.Sequential:
    """Channels that are multiples of a single input, and a ReLU."""
    layer = nn.Conv2d(1, len(weight), 1)
    layer.load_state_dict({"weight": torch.tensor(weight).view(-1, 1, 1, 1), "bias": torch.tensor(bias)})
    return nn.Sequential(layer, nn.ReLU())


def gates_by_hand(model: nn.Sequential, images: Tensor) -> list[np.ndarray]:
    with torch.no_grad():
        first = model[0](images)
        second = model[2](first.relu())
    return [(x >= 0).double().numpy() for x in (first, second)]


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return abs(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else math.nan


def test_every_number_of_a_small_network_is_numpys() -> None:
    model, images = network(), torch.randn(60, *SIZE)
    result = measure(model, images)
    assert result.images == 60
    leading, following = gates_by_hand(model, images)
    for gates, site in zip((leading, following), result.sites, strict=True):
        dimensions, nearest = [], []
        for place in np.ndindex(4, 4):
            vectors = gates[:, :, *place]
            eigenvalues = np.linalg.eigvalsh(np.cov(vectors, rowvar=False))
            dimensions.append(eigenvalues.sum() ** 2 / (eigenvalues**2).sum() / 5)
            for c in range(5):
                others = [correlation(vectors[:, c], vectors[:, d]) for d in range(5) if d != c]
                nearest.append(np.nanmax(others))
        assert site.dimension.median == pytest.approx(np.median(dimensions))
        assert site.dimension.mean == pytest.approx(np.mean(dimensions))
        assert site.dimension.upper == pytest.approx(np.quantile(dimensions, 0.75))
        assert site.channels == pytest.approx(np.nanmean(nearest))
        pairs = [(gates[:, c, i, j], gates[:, c, i, j + 1]) for c in range(5) for i in range(4) for j in range(3)]
        pairs += [(gates[:, c, i, j], gates[:, c, i + 1, j]) for c in range(5) for i in range(3) for j in range(4)]
        assert site.neighbours == pytest.approx(np.nanmean([correlation(a, b) for a, b in pairs]))
    led = [
        np.nanmax([correlation(leading[:, d, i, j], following[:, c, i, j]) for d in range(5)])
        for i, j in np.ndindex(4, 4)
        for c in range(5)
    ]
    assert math.isnan(result.sites[0].leader)
    assert result.sites[1].leader == pytest.approx(np.nanmean(led))


def test_any_kind_of_batches_gives_the_same() -> None:
    model, images = network(), torch.randn(50, *SIZE)
    labelled = DataLoader(TensorDataset(images, torch.zeros(50)), batch_size=7)
    one = measure(model, images, samples=40)
    assert one.images == 40
    assert measure(model, labelled, samples=40).to_dict() == one.to_dict()
    assert measure(model, list(images.split(33)), samples=40).to_dict() == one.to_dict()


def test_shuffled_gates_of_one_cause_come_apart() -> None:
    """One random field drives all channels: one dimension at each position, all of them once shuffled."""
    model = one_layer([1.0] * 8, [0.0] * 8)
    site = measure(model, torch.randn(2_000, 1, 4, 4)).sites[0]
    assert site.dimension == Quantiles(*[0.125] * 6)
    assert site.shuffled.median > 0.95
    assert site.channels == pytest.approx(1)
    assert site.neighbours < 0.05


def test_constant_gates_are_counted_and_left_out() -> None:
    model = one_layer([1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0])
    site = measure(model, torch.randn(100, 1, 3, 3)).sites[0]
    assert site.constant == 0.5
    assert site.dimension == Quantiles(*[0.25] * 6)  # the other two are each other's opposite
    assert site.channels == pytest.approx(1)


def test_a_network_whose_gates_never_change_has_no_numbers_and_no_failure() -> None:
    model = one_layer([0.0] * 4, [1.0, -1.0, 2.0, 0.0])
    result = measure(model, torch.randn(10, 1, 3, 3))
    site = result.sites[0]
    assert site.constant == 1
    assert all(math.isnan(x) for x in (site.dimension.median, site.shuffled.mean, site.channels, site.neighbours))
    entry = json.loads(json.dumps(result.to_dict(), allow_nan=False))["sites"][0]
    assert entry["dimension"]["median"] is None
    assert str(result).splitlines()[2].split()[-5:] == ["-", "-", "-", "-", "100.0%"]


def test_memory_bounds_the_positions_and_keeps_those_that_are_measured() -> None:
    model, images = network(), torch.randn(30, *SIZE)
    bytes_for_one = 2 * 3 * 4 * 5**2
    result = measure(model, images, memory=6 * bytes_for_one)
    assert [site.positions for site in result.sites] == [6, 6]
    assert [site.positions for site in measure(model, images, memory=1).sites] == [1, 1]
    everything = measure(model, images)
    assert [site.positions for site in everything.sites] == [16, 16]
    low, high = everything.sites[0].dimension.low, everything.sites[0].dimension.high
    assert low - 0.2 < result.sites[0].dimension.median < high + 0.2


def test_memory_goes_where_positions_need_it() -> None:
    """A small map is measured whole, and a map of twice the channels at half the positions."""
    groups = [
        (Site(f"{channels}x{side}", channels, side, side, "module"),) for channels, side in ((4, 30), (8, 30), (64, 1))
    ]
    memory = 12 * (4**2 * 200 + 8**2 * 100 + 64**2)
    assert _positions(tuple(groups), memory) == [200, 100, 1]
    assert _positions(tuple(groups), 1) == [1, 1, 1]
    assert _positions(tuple(groups), 2**30) == [900, 900, 1]


def test_the_table_says_at_how_many_positions() -> None:
    model, images = network(), torch.randn(60, *SIZE)
    assert [row.split()[4] for row in str(measure(model, images)).splitlines()[2:4]] == ["16", "16"]
    some = measure(model, images, memory=6 * 2 * 3 * 4 * 5**2)
    assert [row.split()[4:7] for row in str(some).splitlines()[2:4]] == [["6", "of", "16"]] * 2


def test_too_few_images_are_noted() -> None:
    model, images = network(), torch.randn(50, *SIZE)
    assert measure(model, images).warning == ""
    few = measure(model, images[:49])
    assert few.warning.startswith("fewer than 10 images for each channel at 2 sites")
    assert few.warning.endswith("take 50 images")
    assert str(few).endswith(f"note: {few.warning}")


def test_nothing_is_shuffled_on_a_map_of_one_position() -> None:
    model = one_layer([1.0, -1.0, 0.5], [0.0, 0.0, 0.3])
    result = measure(model, torch.randn(100, 1, 1, 1))
    site = result.sites[0]
    assert site.dimension.median == site.dimension.median
    assert math.isnan(site.shuffled.median)
    assert result.to_dict()["sites"][0]["shuffled"]["median"] is None


def test_progress_is_told_after_every_batch() -> None:
    told: list[tuple[int, int]] = []
    measure(network(), list(torch.randn(50, *SIZE).split(20)), samples=45, progress=lambda *both: told.append(both))
    assert told == [(20, 45), (40, 45), (45, 45)]


def test_bad_input_is_refused() -> None:
    with pytest.raises(DeepShareError, match="samples 1"):
        measure(network(), torch.randn(3, *SIZE), samples=1)
    with pytest.raises(DataError, match="no images"):
        measure(network(), [])
    with pytest.raises(CheckpointError):
        measure_run("nowhere")


def test_a_run_is_measured_on_its_training_images(tiny_run: Path) -> None:
    result = measure_run(tiny_run, samples=50)
    assert result.images == 50
    plan = deepshare.Plan.load(tiny_run / "plan.json")
    assert [gates.site.name for gates in result.sites] == [site.name for site in plan.sites]
    assert [gates.group for gates in result.sites] == [
        number for number, group in enumerate(plan.groups, 1) for _ in group.sites
    ]
    assert measure_run(tiny_run, samples=50).to_dict() == result.to_dict()
    assert measure_run(tiny_run / "teacher", samples=50).images == 50


def test_all_images_are_taken_where_there_are_too_few(tiny_run: Path) -> None:
    assert measure_run(tiny_run, samples=10**6).images == TRAINING


@pytest.mark.slow
def test_resnet18_at_4096_images_within_ten_minutes_of_two_cores() -> None:
    """Of processor time of one thread, which does not depend on what else the machine does."""
    began = time.process_time()
    result = measure(zoo.resnet18(num_classes=100), torch.randn(4096, 3, 32, 32))
    assert time.process_time() - began < 600
    assert len(result.sites) == 16
    assert all(site.positions == site.site.positions for site in result.sites)
