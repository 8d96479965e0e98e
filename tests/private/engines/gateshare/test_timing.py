"""Seconds of gateshare are those of the parts of a network, as a calibration found them."""

import pytest
import torch
from torch import nn

from deepshare import plan, share
from deepshare.private.engines.gateshare import timing
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.timing import EXAMPLES, Calibration, Rates, Sizes, calibration_of
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.outcome import Outcome, Part

SIZE = (3, 8, 8)


class NoProducts(timing.ProductTimer):
    """Products that take no time."""

    def seconds(self, steps: object) -> tuple[float, float]:
        return 0.0, 0.0


def network(gates: int | None = None, pool: int = 1) -> Program:
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(pool), nn.Flatten()).eval()
    return translate(share(model, plan(model, SIZE, gates)).eval() if gates else model, SIZE, compare=False)


def sizes(program: Program) -> Sizes:
    return Sizes.of(schedule(program, NumberFormat.usual(program)))


def test_sizes_count_messages_and_gates() -> None:
    full, few = sizes(network()), sizes(network(gates=64))
    assert (full.messages, full.gates, few.messages, few.gates) == (2, 256, 2, 64)
    assert full.large == few.large == 0
    assert few.small > full.small > 256 + 3 * 64  # one truncation more


def test_neurons_of_large_tensors_count_apart() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU()).eval()
    middle, large = (sizes(translate(model, (1, side, side), compare=False)) for side in (256, 1024))
    assert 0 < middle.large < middle.small + middle.large
    assert large.small == 0 < large.large


@pytest.mark.parametrize("phase", [0, 1])
def test_a_calibration_finds_the_rates_that_examples_were_made_with(
    phase: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "ProductTimer", NoProducts)
    programs = [example.program() for example in EXAMPLES]
    true = Rates((0.01, 1e-3, 2e-6, 3e-7, 1e-7))
    measured = [(seconds, 2 * seconds) for seconds in (true.seconds(sizes(program)) for program in programs)]
    found = calibration_of(programs, measured)
    rates = (found.online, found.offline)[phase].values
    assert rates == pytest.approx([(1 + phase) * rate for rate in true.values], rel=1e-6)


def test_estimates_add_products_and_parts() -> None:
    class Products(timing.ProductTimer):
        def seconds(self, steps: object) -> tuple[float, float]:
            return 1.0, 10.0

    program = network()
    calibration = Calibration(Rates((1, 0, 1, 0, 0)), Rates((0, 1, 0, 0, 0)), Products())
    assert calibration.seconds(program) == (1 + 1 + 256, 10 + 2)


def test_products_of_one_shape_are_timed_once_and_averages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 3, 3, 1, 1) for _ in range(4)), nn.ReLU(), nn.AvgPool2d(3, 2), nn.Flatten(), nn.Linear(27, 2)
    ).eval()
    program, calls = translate(model, SIZE, compare=False), list[tuple[int, ...]]()

    def seconds(product: object, x: torch.Tensor) -> float:
        calls.append(tuple(x.shape))
        return float(len(calls))

    monkeypatch.setattr(timing, "_seconds", seconds)
    online, before = timing.ProductTimer().seconds(schedule(program, NumberFormat.usual(program)))
    assert calls == [(1, 3, 8, 8)] * 2 + [(1, 3, 8, 8), (1, 27), (1, 27)]
    # W of four convolutions, the average and W of the last layer; twice their masks, and the client's average.
    assert (online, before) == (4 * 1 + 3 + 4, 4 * 2 * 2 + 3 + 2 * 5)


def test_crossing_is_what_the_client_gets_and_sends() -> None:
    program = network()
    steps = schedule(program, NumberFormat.usual(program))
    crossing = Calibration(Rates(()), Rates(())).crossing(program)
    assert crossing == Part(client_bytes=8 * (3 * 64 + 4 * 64), dealer_bytes=steps.lot_bytes(1, "client"), rounds=2)


@pytest.mark.parametrize("lots", [1, 2])
def test_replaced_lots_are_counted(lots: int) -> None:
    program = network()
    steps = schedule(program, NumberFormat.usual(program))
    lot = steps.lot_bytes(1, "server") + steps.lot_bytes(1, "client")
    outcome = Outcome(None, {}, Part(dealer_bytes=int(0.97 * lots * lot)))
    assert timing.lots_dealt({"dealer": outcome}, program) == lots


def test_a_network_is_run_in_forked_parties() -> None:
    program = network(gates=64)
    outcomes = timing._run_forked(program, torch.zeros(1, *SIZE))
    assert set(outcomes) == {"server", "client", "dealer"}
    assert timing.lots_dealt(outcomes, program) >= 1
    assert timing.before_image(outcomes) > 0 < outcomes["client"].seconds
