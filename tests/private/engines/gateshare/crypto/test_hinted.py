"""Products with weights under encryption: exact for every geometry, of the computed size, random to both parties."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto import hinted, lattice
from deepshare.private.engines.gateshare.crypto.hinted import (
    HintedClient,
    HintedLayer,
    HintedServer,
    check_weights,
    hint_cost,
    hinted_cost,
    secret_cost,
)
from deepshare.private.engines.gateshare.crypto.lattice import DEGREE
from deepshare.private.engines.gateshare.crypto.limb_matmul import Geometry, plain_weight
from deepshare.private.engines.gateshare.crypto.ring import derive
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.crypto.two_ends import Ends, Payload, at_both_ends, well
from tests.private.engines.gateshare.trial import chi_square

SESSION = bytes(range(32))


def layer(takes: tuple[int, int, int], outputs: int, kernel: int = 3, label: int = 1, **moves: Any) -> HintedLayer:
    geometry = Geometry(**{"padding": (kernel // 2, kernel // 2), **moves})
    return HintedLayer(label=label, takes=takes, outputs=outputs, kernel=(kernel, kernel), geometry=geometry)


def weights_of(one: HintedLayer) -> Tensor:
    channels = one.takes[0] // one.geometry.groups
    return torch.randint(-(2**16), 2**16, (one.outputs, channels, *one.kernel))


def multiply(
    layers: list[HintedLayer], weights: list[Tensor], own: list[Tensor], changes: Any = (None, None), rounds: int = 1
) -> Ends:
    """The sum of all layers' products, some times with the same hints; what was sent is among the ends."""
    images = len(own[0])

    def server(channel: Channel) -> list[Tensor]:
        end = HintedServer(channel, 0, SESSION, list(zip(layers, weights, strict=True)))
        return [_product(end, layers, [], images) for _ in range(rounds)]

    def client(channel: Channel) -> list[Tensor]:
        end = HintedClient(channel, 0, SESSION, layers)
        return [_product(end, layers, own, images) for _ in range(rounds)]

    return at_both_ends(server, client, changes)


def near(found: Tensor, expected: Tensor) -> None:
    """Off by one in a few places: one in 2^12 on average."""
    wrong = (found - expected).abs()
    assert int(wrong.max()) <= 1 and int(wrong.sum()) <= 5 + found.numel() // 1000


def _product(end: Any, layers: list[HintedLayer], own: list[Tensor], images: int) -> Tensor:
    end.start(images)
    share: Tensor = end.product(layers, own, images)
    return share


@pytest.mark.parametrize(
    ("one", "images"),
    [
        (layer((3, 8, 8), 4), 2),
        (layer((2, 9, 7), 3, stride=(2, 2)), 5),
        (layer((4, 9, 7), 6, stride=(1, 2), padding=(2, 1), dilation=(2, 1), groups=2), 3),
        (layer((4, 5, 6), 4, 1, groups=4), 2),  # a number for each channel
        (layer((2, 16, 16), 2, 1, stride=(2, 2)), 20),  # more images than fit a polynomial
        (layer((2, 70, 66), 2), 2),  # maps larger than a polynomial, in bands
        (layer((1, 80, 70), 2, 7, stride=(2, 2)), 1),
        (layer((20, 1, 1), 10, 1), 3),  # a fully connected layer
        (layer((30, 4, 4), 70), 1),  # as many channels in a polynomial as can be, and a last one with fewer
        (layer((130, 2, 2), 260, 1, groups=130), 1),  # in which groups are cut
        (layer((2, 1, 1), 3), 2),  # a kernel that is wider than rows
    ],
)
def test_shares_add_up_and_every_byte_is_computed(one: HintedLayer, images: int) -> None:
    torch.manual_seed(images)
    W, t = weights_of(one), torch.randint(-(2**63), 2**63 - 1, (images, *one.takes))
    ends = well(multiply([one], [W], [t]))
    ((server,), (client,)) = ends.results
    assert server.shape == (images, *one.shape)
    near(server + client, plain_weight(W, one.geometry)(t))
    cost = hint_cost([one], [images]) + secret_cost([one], images) + hinted_cost([one], images)
    assert ends.sent == [cost.server_bytes, cost.client_bytes]


def test_layers_that_are_added_have_one_answer() -> None:
    torch.manual_seed(5)
    layers = [layer((2, 8, 8), 3, label=4), layer((4, 16, 16), 3, 1, label=9, stride=(2, 2))]
    weights = [weights_of(one) for one in layers]
    own = [torch.randint(-(2**63), 2**63 - 1, (2, *one.takes)) for one in layers]
    ends = well(multiply(layers, weights, own))
    first, second = (plain_weight(W, one.geometry)(t) for one, W, t in zip(layers, weights, own, strict=True))
    near(ends.results[0][0] + ends.results[1][0], first + second)
    apart = sum((hinted_cost([one], 2) for one in layers), Part())
    assert hinted_cost(layers, 2).server_bytes == apart.server_bytes // 2


def test_shares_are_off_by_one_where_the_mask_is_next_to_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the docstring says of rounding: with masks at the edge, the sum is off by at most a unit."""
    torch.manual_seed(6)
    one = layer((3, 8, 8), 4)
    W, t = weights_of(one), torch.randint(-(2**63), 2**63 - 1, (2, *one.takes))
    uniform = lattice.uniform

    def edge(seed: bytes, count: int, *label: str | int) -> Any:
        found = uniform(seed, count, *label)
        return np.zeros_like(found) if label == ("answers",) else found

    monkeypatch.setattr(lattice, "uniform", edge)
    ends = well(multiply([one], [W], [t]))
    wrong = ends.results[0][0] + ends.results[1][0] - plain_weight(W, one.geometry)(t)
    assert set(wrong.flatten().tolist()) == {0, 1}


def test_messages_look_random_and_so_do_their_differences() -> None:
    torch.manual_seed(7)
    one = layer((8, 16, 16), 8)
    # Weights and inputs that are all alike show whatever is not masked.
    W, t = torch.full((8, 8, 3, 3), 7), torch.zeros(4, 8, 16, 16, dtype=torch.int64)
    ends = well(multiply([one], [W], [t], rounds=2))
    for frames in ends.frames:
        bodies = [frame[hinted.HEAD_BYTES :] for frame in frames]
        for body in bodies:
            if len(body) > 1 << 14:
                assert 120 < chi_square(body) < 440
        for first, second in pairwise(bodies):
            size = min(len(first), len(second))
            if size > 1 << 14:
                assert 120 < chi_square(first[:size] - second[:size]) < 440
    # The same inputs twice: keys, ciphertexts and answers have nothing in common.
    from_client = [bytes(frame[hinted.HEAD_BYTES :]) for frame in ends.frames[1]]
    half = len(from_client) // 2
    assert all(one != other for one, other in zip(from_client[:half], from_client[half:], strict=True))
    for results in ends.results:
        for share in results:
            assert 120 < chi_square(share.numpy().reshape(-1).view(np.uint8)) < 440


def test_hints_hide_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its mask a hint of a single weight is a public polynomial times that weight; with it nobody can tell."""
    one, W = layer((1, 8, 8), 1, 1, padding=(0, 0)), torch.full((1, 1, 1, 1), 3)
    public = one.public(derive(SESSION, "hinted"), 1)[:, 0]
    bare = lattice.packed(lattice.carried(3 * public), hinted.HINT)
    t = torch.zeros(1, 1, 8, 8, dtype=torch.int64)

    def equal() -> float:
        hint = well(multiply([one], [W], [t])).frames[0][0][hinted.HEAD_BYTES :]
        return float((hint.reshape(DEGREE, -1)[:, 1:] == bare[:, 1:]).mean())

    assert equal() < 0.02
    monkeypatch.setattr(HintedServer, "_masks", no_masks)
    assert equal() > 0.98


def no_masks(self: HintedServer, layer: HintedLayer, some: slice, K: int) -> Any:
    return np.zeros((len(range(some.start, some.stop, K)), DEGREE // 2), complex)


def test_hints_of_merged_outputs_hide_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one session, without masks, equal weights have equal hints, whatever the client draws; with them not."""
    one = layer((8, 4, 4), 8)
    assert one.slots(1) == 8
    W, t = weights_of(one), torch.zeros(1, *one.takes, dtype=torch.int64)

    def alike() -> float:
        first, second = (well(multiply([one], [W], [t])).frames[0][0][hinted.HEAD_BYTES :] for _ in range(2))
        return float((first.reshape(DEGREE, -1)[:, 1:] == second.reshape(DEGREE, -1)[:, 1:]).mean())

    assert alike() < 0.02
    monkeypatch.setattr(HintedServer, "_masks", no_masks)
    assert alike() > 0.98


def test_a_secret_serves_for_a_layer_once() -> None:
    one = layer((1, 4, 4), 1)
    W, t = weights_of(one), torch.zeros(1, 1, 4, 4, dtype=torch.int64)

    def server(channel: Channel) -> None:
        end = HintedServer(channel, 0, SESSION, [(one, W)])
        end.start(1)
        for _ in range(2):
            end.product([one], [], 1)

    def client(channel: Channel) -> None:
        end = HintedClient(channel, 0, SESSION, [one])
        end.start(1)
        end.product([one], [t], 1)
        with pytest.raises(AssertionError, match="once"):
            end.product([one], [t], 1)

    ends = at_both_ends(server, client)
    assert ends.errors[1] is None and isinstance(ends.errors[0], ConnectionError)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("damage", ["short", "long", "another's"])
def test_a_frame_of_another_size_or_kind_ends_it_with_one_line(party: int, at: int, damage: str) -> None:
    layers = [layer((2, 4, 4), 2, label=1), layer((2, 4, 4), 2, label=2)]
    weights = [weights_of(one) for one in layers]
    own = [torch.zeros(1, *one.takes, dtype=torch.int64) for one in layers]
    hit = []

    def change(place: int, payload: Payload) -> Payload:
        if place != at:
            return payload
        hit.append(place)
        if damage == "another's":
            payload[4] ^= 1
            return payload
        return payload[:-1] if damage == "short" else np.append(payload, payload[:1])

    changes = (change, None) if party == 0 else (None, change)
    ends = multiply(layers, weights, own, changes)
    assert hit
    assert isinstance(ends.errors[1 - party], EngineError) and "\n" not in str(ends.errors[1 - party])
    # The server has what it needs by then, and may have ended.
    assert isinstance(ends.errors[party], ConnectionError) or (party == 0 and ends.errors[party] is None)


def test_rows_beyond_a_polynomial_and_weights_beyond_exact_sums_are_refused() -> None:
    with pytest.raises(EngineError, match="rows of 5000 numbers are too long for encryption: give smaller images"):
        list(layer((1, 4, 5000), 1).blocks(1))
    one = layer((1, 4, 4), 1)
    with pytest.raises(EngineError, match="too large: use fewer fractional bits"):
        HintedServer(None, 0, SESSION, [(one, torch.full((1, 1, 3, 3), 1 << 26))])  # type: ignore[arg-type]
    check_weights([torch.full((1, 1, 3, 3), 1 << 23)] * 3)
    with pytest.raises(EngineError, match="too large: use fewer fractional bits"):
        check_weights([torch.full((1, 1, 3, 3), 1 << 23)] * 4)


@pytest.mark.parametrize(
    ("side", "kernel", "moves"),
    [
        ((61, 61), 11, {"stride": (4, 4), "padding": (2, 2)}),
        ((60, 60), 7, {"stride": (4, 4), "padding": (3, 3)}),
        ((65, 65), 3, {"stride": (3, 3), "padding": (0, 0)}),
        ((64, 62), 3, {"stride": (2, 2), "padding": (1, 1)}),
    ],
)
def test_a_map_that_does_not_fit_though_all_rows_that_are_read_do(
    side: tuple[int, int], kernel: int, moves: dict[str, Any]
) -> None:
    torch.manual_seed(8)
    one = layer((1, *side), 1, kernel, **moves)
    W, t = weights_of(one), torch.randint(-(2**63), 2**63 - 1, (1, *one.takes))
    (server,), (client,) = well(multiply([one], [W], [t])).results
    near(server + client, plain_weight(W, one.geometry)(t))


def test_layers_of_one_label_are_refused() -> None:
    twice = [layer((1, 4, 4), 1), layer((1, 8, 8), 1)]
    with pytest.raises(AssertionError, match="layers of one label"):
        HintedClient(None, 0, SESSION, twice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "party", "frame"), [("key", 1, 0), ("switch", 1, 1), ("errors", 1, 2), ("error", 0, 0)]
)
def test_every_kind_of_error_is_added(monkeypatch: pytest.MonkeyPatch, kind: str, party: int, frame: int) -> None:
    one, W, t = layer((2, 8, 8), 2), torch.full((2, 2, 3, 3), 7), torch.zeros(1, 2, 8, 8, dtype=torch.int64)
    monkeypatch.setattr(hinted, "fresh_seed", lambda: bytes(32))
    before = well(multiply([one], [W], [t])).frames
    errors = lattice.errors

    def larger(seed: bytes, count: int, *label: str | int) -> NDArray[np.int64]:
        return errors(seed, count, *label) + (1 << 30 if label[0] == kind else 0)

    monkeypatch.setattr(lattice, "errors", larger)
    after = well(multiply([one], [W], [t])).frames
    assert not np.array_equal(before[party][frame], after[party][frame])


def test_no_secret_serves_twice() -> None:
    """One session, weights and inputs twice, in two rounds of several polynomials: all that is sent differs."""
    one = layer((2, 16, 16), 4)
    W, t = torch.full((4, 2, 3, 3), 7), torch.zeros(30, 2, 16, 16, dtype=torch.int64)
    runs = [well(multiply([one], [W], [t], rounds=2)) for _ in range(2)]
    for party in (0, 1):
        bodies = [np.frombuffer(frame, np.uint8)[hinted.HEAD_BYTES :] for run in runs for frame in run.frames[party]]
        for one_body, other in combinations(bodies, 2):
            length = min(len(one_body), len(other))
            assert 120 < chi_square(one_body[:length] - other[:length]) < 440
        shares = [share for run in runs for share in run.results[party]]
        assert not any(torch.equal(first, second) for first, second in combinations(shares, 2))


@pytest.mark.parametrize("largest", [0, 1, 8_191, 8_192, 134_209_535, 134_209_536])
def test_weights_of_any_size_are_multiplied(largest: int) -> None:
    one = layer((2, 4, 4), 2, 1, padding=(0, 0))
    W, t = torch.full((2, 2, 1, 1), largest), torch.randint(-(2**63), 2**63 - 1, (1, 2, 4, 4))
    W[0], W[1, 1] = -W[0], 1
    (server,), (client,) = well(multiply([one], [W], [t])).results
    near(server + client, (W[None] * t[:, None, :, :, :]).sum(2))
    assert hinted._digit_count(largest) == 1 + (largest > 8_191) + (largest > 134_209_535)
