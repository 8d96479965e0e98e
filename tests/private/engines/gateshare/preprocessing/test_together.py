"""Lots that two parties make: every tensor of an inference with them is that of the clear, every byte is computed."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepshare import plan, share, zoo
from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.engines.gateshare import cost_model, reference
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.homomorphic import products_cost
from deepshare.private.engines.gateshare.crypto.ring import encode, fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat, calibrate
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.preprocessing.together import LotMaker, new_lots, unit_weights
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.local import output_cost
from deepshare.private.ir.trace import translate, with_answer
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.crypto.two_ends import at_both_ends
from tests.private.engines.gateshare.trial import SIZE, Run, chi_square, networks, shared_resnet
from tests.private.engines.gateshare.two_party import OPEN, PARTIES, InTheOpen, Told, TwoPartyTrial


@pytest.fixture(scope="module", autouse=True)
def _open_products() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "Encrypted", InTheOpen)
        patch.setattr(together, "Duplex", Told)
        yield


@pytest.fixture(scope="module", params=sorted(networks()))
def trial(request: pytest.FixtureRequest) -> TwoPartyTrial:
    torch.manual_seed(5)
    return TwoPartyTrial(translate(networks()[request.param], SIZE))


def run_exactly(trial: TwoPartyTrial, images: Tensor) -> Run:
    """Run images, and compare every tensor with the clear."""
    run = trial.run(images)
    expected: dict[int, Tensor] = {}
    logits = reference.evaluate(trial.schedule, images, run.shares, expected.__setitem__, products=trial.off)
    assert set(expected) == set(run.values)
    for number, value in expected.items():
        assert torch.equal(run.values[number], value), f"{number} {trial.schedule.steps[number]}"
    assert torch.equal(run.logits, logits + run.noise)
    # Products under encryption are off by a unit for about one number in 2^12.
    off = torch.cat([one.flatten() for one in trial.off.values()])
    assert int(off.count_nonzero()) <= 5 + off.numel() // 1000
    return run


def test_every_tensor_is_exact_and_every_online_byte_is_computed(trial: TwoPartyTrial) -> None:
    run = run_exactly(trial, torch.randn(2, *SIZE))
    computed = dict.fromkeys(run.server, Part())
    for step in trial.schedule.steps:
        computed[step.operation] += step.online_cost(2)
    last = trial.schedule.steps[trial.schedule.output]
    computed[last.operation] += output_cost(last, 2)
    for number, part in computed.items():
        assert replace(run.server[number].beside(run.client[number]), seconds=0.0) == part
    leaders = sum(isinstance(step, GateStep) and step.leads for step in trial.schedule.steps)
    online = sum(cost_model.online(trial.program, 2, dealt=False).values(), Part())
    dealt = sum(cost_model.online(trial.program, 2).values(), Part())
    assert online.rounds == dealt.rounds + 2 * leaders
    assert online.comparisons == dealt.comparisons == 2 * trial.program.comparisons


def test_a_lot_has_its_sizes_and_followers_cost_alpha_and_beta_alone(trial: TwoPartyTrial) -> None:
    halves = dict(zip(PARTIES, trial.made_lots(2), strict=True))
    for party, lots in halves.items():
        sizes = trial.schedule.dealt_bytes(1, party)
        for lot, _ in lots.parts:
            assert {piece: len(data) for piece, data in lot.pieces.items()} == sizes
            assert trial.schedule.lot_bytes(1, party) == ID_BYTES + len(lot.seed) + sum(sizes.values())
    for (one, _), (other, _) in zip(halves["server"].parts, halves["client"].parts, strict=True):
        assert one.id == other.id and one.seed != other.seed
    gates = [step for step in trial.schedule.steps if isinstance(step, GateStep)]
    cost = trial.schedule.making_cost(2) + trial.schedule.hint_cost([2])
    apart = products_cost(one.count for _, one in trial.schedule.encrypted(2))
    assert trial.made == {
        "server": cost.server_bytes - apart.server_bytes,
        "client": cost.client_bytes - apart.client_bytes,
    }
    for step in gates:
        if not step.leads:  # masks are for nothing; alpha and beta take three corrections a neuron, from the client
            assert step.transfer_cost(2) == Part(client_bytes=3 * 8 * 2 * step.products)


def looks_random(data: bytearray) -> bool:
    """Chi-square of bytes, or of halves of bytes where there are few."""
    found = np.frombuffer(data, np.uint8)
    if len(found) >= 1 << 14:
        return 120 < chi_square(found) < 440
    counts = np.bincount(np.concatenate([found >> 4, found & 15]), minlength=16)
    return len(found) >= 128 and float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 80


def test_every_kind_of_message_looks_random() -> None:
    """Small frames of a kind are joined, over several runs."""
    torch.manual_seed(9)
    programs = [
        translate(shared_resnet(), SIZE),
        with_answer(translate(shared_resnet(), SIZE), "class"),
        translate(networks()["apart"], SIZE),
        translate(networks()["excited and shared"], SIZE),
    ]
    kinds: dict[tuple[str, ...], bytearray] = defaultdict(bytearray)
    for program in [*programs, *programs[:1] * 2]:
        trial = TwoPartyTrial(program)
        run = trial.run(torch.randn(2, *SIZE))
        for (party, name), data in trial.kinds.items():
            kinds[party, name] += data
        kinds["client", "openings"] += b"".join(x.numpy().tobytes() for x in trial.openings.values())
        *sent, (_, result) = run.from_server
        kinds["server", "result"] += result
        for party, frames in zip(PARTIES, (sent, run.from_client), strict=True):
            places = Counter[int]()
            for number, content in frames:
                step = trial.schedule.steps[number]
                # The last byte of packed bits may not be full.
                kinds[party, type(step).__name__, f"frame {places[number]}"] += content[:-1]
                places[number] += 1
    # Products in the clear, which stand in for ciphertexts, and how many transfers were made.
    for name in (OPEN, "ot _extend", "units"):
        for party in PARTIES:
            kinds.pop((party, name), None)
    assert [kind for kind, data in kinds.items() if not looks_random(data)] == []


def test_what_is_said_before_and_with_the_images_holds_no_weight_or_pixel() -> None:
    torch.manual_seed(9)
    trial = TwoPartyTrial(translate(shared_resnet(8), SIZE))
    images = torch.randn(4, *SIZE)
    run = trial.run(images)
    online = {"server": run.from_server, "client": run.from_client}
    secrets = {"client": encode(images, trial.number_format.fraction)}
    linear = [step for step in trial.schedule.steps if isinstance(step, LinearStep)]
    gates = [step for step in trial.schedule.steps if isinstance(step, GateStep) and step.affine is not None]
    affine = torch.cat([step.affine_numbers().flatten() for step in gates])
    biases = torch.cat([step.bias().flatten() for step in linear])
    assert len(affine) > 300 and len(biases) > 300
    weights = torch.cat([term.weight().flatten() for step in linear for term in step.terms])
    secrets["server"] = torch.cat([affine, biases, weights[:: len(weights) // 500]])
    alphas = [x for step in gates if step.affine is not None for x in (step.affine.alpha, step.affine.beta)]
    real = [*alphas, *(term.layer.bias for step in linear for term in step.terms), linear[0].terms[0].layer.weight]
    for party in PARTIES:
        said = b"".join([*trial.said[party], *(data for _, data in online[party])])
        words = secrets[party].flatten().unique()
        # Rare enough that one would not occur by chance: eight bytes, in any position. Counters of transfers are said.
        for value in words[(words.abs() > 8) & (words % 64 != 0)].tolist():
            assert value.to_bytes(8, "little", signed=True) not in said
        floats = torch.cat([x.flatten()[:200] for x in ([images] if party == "client" else real)])
        for pair in floats.float().split(2):  # eight bytes again: four occur by chance in a few megabytes
            assert pair.numpy().tobytes() not in said or not pair.any()
        for one in floats.double():
            assert one.numpy().tobytes() not in said or not one.any()


def test_masks_of_two_lots_have_nothing_in_common(trial: TwoPartyTrial) -> None:
    first, second = ([lots.parts[0][0] for lots in trial.made_lots(1)] for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.id != other.id and one.seed != other.seed
        for piece, data in one.pieces.items():
            if len(data) > 256:
                equal = float((data == other.pieces[piece]).mean())
                assert equal < 0.1, piece


def test_alpha_and_beta_beyond_their_digits_are_refused_before_anything_starts() -> None:
    model = shared_resnet(8)
    engine = find_engine("gateshare-2pc")
    engine.check(translate(model, SIZE), {})
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if name.endswith("alpha"))[0] = -64.0
    with pytest.raises(UnsupportedModelError, match=r"its alpha reaches 64, above 63\.9998: train with weight decay"):
        engine.check(translate(model, SIZE), {})
    find_engine("gateshare").check(translate(model, SIZE), {})
    with pytest.raises(EngineError, match="engine gateshare-2pc has no option dealer: leave it out"):
        engine.check(translate(nn.Sequential(nn.Conv2d(3, 4, 3)), SIZE), {"dealer": "pool"})


@pytest.mark.parametrize(("largest", "limit"), [(-7.9, 8), (8.0, 16), (-17.5, 32), (63.9, 64)])
def test_alpha_and_beta_of_a_short_training_are_exact_too(largest: float, limit: int) -> None:
    model = shared_resnet(8)
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        last = next(name for name in reversed(parameters) if name.endswith(".alpha"))
        parameters[last][-1] = largest
        parameters[last.replace("alpha", "beta")][-1] = -largest
    program = translate(model, SIZE)
    numbers = calibrate(program)
    assert numbers.affine_limit == limit
    assert NumberFormat.parse(json.loads(json.dumps(numbers.dump())), program) == numbers
    assert ("affine_limit" in numbers.dump()) == (limit > 8)
    run_exactly(TwoPartyTrial(program, numbers), torch.randn(1, *SIZE) / 4)


@pytest.mark.parametrize("at", [0, 3, 4, 6, 10, 11])  # 4 and 10 of the client are ciphertexts, 11 of the server a hint
@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("damage", ["short", "long", "repeated"])
def test_a_dishonest_peer_ends_it_with_one_line_on_both_sides(
    party: Holder, at: int, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    trial = TwoPartyTrial(translate(model, (1, 4, 4)))

    class Dishonest(Told):
        def put(self, name: str, content: bytes) -> None:
            sent = [one for kind, one in self.said if kind != OPEN]
            if (
                name != OPEN
                and len(sent) == at
                and self._channel.peer == ("receiver" if party == "server" else "sender")
            ):
                changed = {"short": content[:-1], "long": content + b"x", "repeated": sent[-1] if sent else b""}
                content = changed[damage]
            super().put(name, content)

    monkeypatch.setattr(together, "Duplex", Dishonest)

    def make(role: Holder, channel: Channel) -> None:
        maker = LotMaker.begin(trial.schedule if role == "server" else trial.public, role, channel)
        maker.make(new_lots(bytes(16), [fresh_seed()]))

    ends = at_both_ends(lambda channel: make("server", channel), lambda channel: make("client", channel))
    for error in ends.errors:
        assert isinstance(error, EngineError | ConnectionError), error
        assert "\n" not in str(error)
    assert any(isinstance(error, EngineError) and "start both parties again" in str(error) for error in ends.errors)


def test_units_weigh_as_much_as_they_work() -> None:
    """As measured for ResNet-18 of width 64: gates of the first stage take ten times as long as those of the last."""
    model = zoo.resnet18()
    program = translate(share(model, plan(model, (3, 32, 32), budget=6000)).eval(), (3, 32, 32)).outline()
    weights = unit_weights(schedule(program, NumberFormat.usual(program), dealt=False), 2)
    gates, products = weights[:4], weights[4:]
    assert len(products) == 18 and 6 < gates[0] / gates[3] < 10 and 0.1 < sum(gates) / sum(weights) < 0.4
    # The first convolution has few channels, the last layer no positions.
    assert max(products[1:-1]) > 8 * products[0] and min(products[1:-1]) > 2 * products[-1]
