"""The best classes: found by comparisons of two, exactly, and nothing else told."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private import infer
from deepshare.private.cost import predict
from deepshare.private.engines.gateshare import cost_model
from deepshare.private.engines.gateshare import reference as fixed
from deepshare.private.engines.gateshare.protocols.largest import tournament
from deepshare.private.engines.gateshare.protocols.local import output_cost, real_classes
from deepshare.private.ir import outline
from deepshare.private.ir.trace import Revealed, translate, with_answer
from deepshare.private.runtime.engine import engine_names, find_engine
from tests.private.engines.gateshare.trial import SIZE, Trial, shared_resnet


@pytest.mark.parametrize(("slots", "places"), [(2, 1), (3, 1), (10, 1), (100, 1), (6, 5), (11, 5), (100, 5), (7, 7)])
def test_a_tournament_sorts_the_first_places(slots: int, places: int) -> None:
    rounds, winners = tournament(slots, places)
    assert sum(map(len, rounds)) == sum(slots - place for place in range(1, places + 1))
    for pairs in rounds:
        assert len({slot for pair in pairs for slot in pair}) == 2 * len(pairs)
    for seed in range(20):
        scores = torch.randn(slots, generator=torch.Generator().manual_seed(seed)).tolist()
        found = list(enumerate(scores))
        for pairs in rounds:
            for p, q in pairs:
                if found[p][1] < found[q][1]:
                    found[p], found[q] = found[q], found[p]
        assert [found[slot][0] for slot in winners] == sorted(range(slots), key=lambda one: -scores[one])[:places]


def test_rounds_are_few() -> None:
    assert len(tournament(100, 1)[0]) == 7 and len(tournament(1000, 1)[0]) == 10
    assert len(tournament(100, 5)[0]) == 18 and len(tournament(1000, 5)[0]) == 23


@pytest.mark.parametrize(("answer", "places"), [("class", 1), ("top5", 5)])
def test_every_tensor_is_exact_and_the_client_learns_classes_alone(answer: Revealed, places: int) -> None:
    torch.manual_seed(2)
    plain = translate(shared_resnet(), SIZE)
    program = with_answer(plain, answer)
    trial, images = Trial(program), torch.randn(3, *SIZE)
    run = trial.run(images)
    expected: dict[int, torch.Tensor] = {}
    classes = fixed.evaluate(trial.schedule, images, run.shares, expected.__setitem__)
    for number, value in expected.items():
        assert torch.equal(run.values[number], value), f"{number} {trial.schedule.steps[number]}"
    assert torch.equal(run.logits, classes) and not run.noise.any()
    scale = trial.schedule.steps[trial.schedule.output].scale
    scores = fixed.evaluate(Trial(plain, trial.number_format).schedule, images)
    assert torch.equal(real_classes(classes, scale, 10), scores.sort(1, descending=True).indices[:, :places])
    assert torch.equal(real_classes(classes, scale, 10).double(), program.evaluate(images))
    last, step = len(program.operations) - 1, trial.schedule.steps[trial.schedule.output]
    rounds, _ = tournament(10, places)
    computed = cost_model.online(program, 3)[last]
    assert computed.comparisons == 3 * (program.comparisons - plain.comparisons) == 3 * sum(map(len, rounds))
    assert computed.rounds == len(rounds) + output_cost(step, 3).rounds
    assert run.server[last].server_bytes == computed.server_bytes
    assert run.client[last].client_bytes == computed.client_bytes


def test_a_map_of_classes() -> None:
    torch.manual_seed(3)
    program = with_answer(translate(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1)), SIZE), "class")
    assert program.operations[-1].shape == (1, 6, 6) and program.comparisons == 6 * 36 + 3 * 36
    trial, images = Trial(program), torch.randn(2, *SIZE)
    run = trial.run(images)
    scale = trial.schedule.steps[trial.schedule.output].scale
    assert torch.equal(run.logits, fixed.evaluate(trial.schedule, images, run.shares))
    assert float((real_classes(run.logits, scale, 4) == program.evaluate(images)).double().mean()) > 0.95


@pytest.mark.usefixtures("parties_are_threads")
@pytest.mark.parametrize("engine", ["gateshare", "gateshare-2pc"])
def test_through_the_interface(engine: str) -> None:
    if any(find_spec(package) is None for package in find_engine(engine).packages):
        pytest.skip(f"engine {engine} is not installed")
    torch.manual_seed(4)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 6)), torch.randn(4, 3, 2, 2)
    result = infer(model, images, engine, answer="top5")
    assert result.classes.tolist() == model(images).sort(1, descending=True).indices[:, :5].tolist()
    assert result.cost.error is None
    with pytest.raises(EngineError, match="classes and no logits"):
        _ = result.logits
    expected = predict(model, (3, 2, 2), engine, images=4, answer="top5")
    assert result.cost.online.comparisons == expected.online.comparisons == 4 * (8 + 5 + 4 + 3 + 2 + 1)
    assert result.cost.online.rounds == expected.online.rounds
    assert result.cost.online.server_bytes == expected.online.server_bytes


def test_what_is_refused() -> None:
    program = translate(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2))
    with pytest.raises(EngineError, match="top5 chooses among more classes than the network's 5: use logits"):
        with_answer(program, "top5")
    with pytest.raises(EngineError, match="no answer is named top3: take one of class, top5, logits"):
        with_answer(program, "top3")  # type: ignore[arg-type]
    answering = with_answer(program, "class")
    for name in engine_names():
        if name.startswith("gateshare"):
            find_engine(name).check(answering, {})
        else:
            with pytest.raises(UnsupportedModelError, match=f"engine {name} gives logits alone"):
                find_engine(name).check(answering, {})
    parsed = outline.parse(outline.dump(answering))
    assert parsed.hides_scores and parsed.classes == 5
    for wrong in ('"classes": 5', '"classes": 4'), ('"shape": [1]', '"shape": [6]'):
        with pytest.raises(EngineError, match="damaged"):
            outline.parse(outline.dump(answering).replace(*wrong))
    for numbers in (torch.tensor([5 << 16]), torch.tensor([-1 << 16]), torch.tensor([(1 << 16) + 1])):
        with pytest.raises(EngineError, match="no class of the network"):
            real_classes(numbers, 16, 5)
