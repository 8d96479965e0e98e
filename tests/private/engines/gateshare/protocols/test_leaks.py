"""Nothing that goes over the wire tells anything, and randomness that is used twice would show in these tests."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.protocols.comparison import unpack
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.engines.gateshare.protocols.square import OpeningStep
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.sessions import fix_randomness
from tests.private.engines.gateshare.trial import SIZE, Run, Trial, chi_square, curved_resnet, shared_resnet

IMAGES = 32
LOW, HIGH = 120.0, 440.0  # 255 degrees of freedom, eight standard deviations to the upper side
Message = NDArray[np.uint64]


@pytest.fixture(scope="module", autouse=True)
def _randomness() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fix_randomness(patch, "leaks")
        yield


@pytest.fixture(scope="module", params=[shared_resnet, curved_resnet])
def trial(request: pytest.FixtureRequest) -> Trial:
    torch.manual_seed(11)
    return Trial(translate(request.param(), SIZE))


def messages(trial: Trial, run: Run) -> dict[tuple[str, int], Message]:
    """All ring elements of an inference, by sender and step; the last, which the client is to know, is not hidden."""
    found = {}
    for sender, sent in (("server", run.from_server[:-1]), ("client", run.from_client)):
        for number, data in sent:
            size = 8 * IMAGES * trial.schedule.steps[number].elements
            if len(data) >= size:
                found[sender, number] = np.frombuffer(data[:size], np.uint64)
    return found


def bits(trial: Trial, run: Run) -> Iterator[NDArray[np.bool_]]:
    for number, step in enumerate(trial.schedule.steps):
        if isinstance(step, GateStep) and step.leads:
            count = IMAGES * step.comparisons
            yield unpack(np.frombuffer([d for n, d in run.from_server if n == number][1], np.uint8), count)
            sent = next(d for n, d in run.from_client if n == number)[8 * IMAGES * step.elements :]
            yield unpack(np.frombuffer(sent, np.uint8), count)


def looks_uniform(message: Message) -> bool:
    planes = message.view(np.uint8), message.view(np.uint8)[7::8], message.view(np.uint8)[::8]
    return all(LOW < chi_square(plane) < HIGH for plane in planes)


def test_every_message_looks_uniform_although_images_are_all_alike(trial: Trial) -> None:
    images = torch.zeros(IMAGES, *SIZE)
    runs = [trial.run(images) for _ in range(2)]
    first, second = (messages(trial, run) for run in runs)
    squares = sum(isinstance(step, OpeningStep) for step in trial.schedule.steps)
    assert squares in (0, 16) and len(first) == 1 + 2 * (16 + squares) and set(first) == set(second)
    for one, found in first.items():
        assert looks_uniform(found), one
        # The same place in another inference, and in another image of this one.
        assert looks_uniform(found - second[one]), one
        each = found.reshape(IMAGES, -1)
        assert looks_uniform((each[::2] - each[1::2]).ravel()), one
    for run in runs:
        for some in bits(trial, run):
            assert abs(some.mean() - 0.5) < 5 * 0.5 / len(some) ** 0.5


def test_messages_of_one_shape_have_nothing_in_common(trial: Trial) -> None:
    by_size: dict[int, list[Message]] = {}
    for message in messages(trial, trial.run(torch.zeros(IMAGES, *SIZE))).values():
        by_size.setdefault(len(message), []).append(message)
    differences = [first - second for found in by_size.values() for first, second in pairwise(found)]
    assert len(differences) > 20
    assert all(looks_uniform(difference) for difference in differences)


def test_client_openings_and_masked_weights_look_uniform(trial: Trial) -> None:
    made = [trial.client.preprocess(trial.dealer.deal(IMAGES)[1], fresh_seed()).openings for _ in range(2)]
    for piece, tensor in made[0].items():
        for one in (tensor, tensor - made[1][piece]):
            assert looks_uniform(one.contiguous().numpy().view(np.uint64).ravel()), piece
    once = np.concatenate([tensor.numpy().ravel() for step in trial.masked_weights.values() for tensor in step])
    assert looks_uniform(once.view(np.uint64))
    again = Trial(trial.program)
    other = np.concatenate([tensor.numpy().ravel() for step in again.masked_weights.values() for tensor in step])
    assert looks_uniform((once - other).view(np.uint64))


def test_no_two_weights_have_a_mask_in_common(trial: Trial) -> None:
    """Also of other shapes: masks of one label begin alike."""
    each = [tensor.numpy().view(np.uint64).ravel() for step in trial.masked_weights.values() for tensor in step]
    for one, other in combinations([weights for weights in each if len(weights) >= 1024], 2):
        size = min(len(one), len(other))
        assert looks_uniform(one[:size] - other[:size])
    # Those of alpha and beta are few: not one number may be hidden as another one is.
    few = np.concatenate([weights for weights in each if len(weights) < 1024])
    assert len(few) > 100 and not np.any(np.abs(np.diff(np.sort(few)).view(np.int64)) < 1 << 32)


def test_corrections_look_uniform_to_the_server_and_the_client_gets_none(trial: Trial) -> None:
    lot, other = trial.dealer.deal(IMAGES)
    assert {name for _, name in other.pieces} == {"keys"}
    for (number, name), piece in lot.pieces.items():
        if name not in ("flip", "keys"):
            assert LOW < chi_square(piece) < HIGH, (number, name)


def test_a_lot_that_is_used_twice_shows(trial: Trial) -> None:
    """The control: without it the tests above might see nothing whatever happens."""
    for_server, for_client = trial.dealer.deal(IMAGES)
    seed, found = fresh_seed(), []
    for images in (torch.zeros(IMAGES, *SIZE), torch.randn(IMAGES, *SIZE)):
        material = trial.client.preprocess(for_client, seed)
        run = trial.online(images, [(for_server, range(IMAGES))], material, dict(trial.public.seen))
        found.append(messages(trial, run))
    assert all(looks_uniform(message) for messages in found for message in messages.values())
    seen = {one: not looks_uniform(message - found[1][one]) for one, message in found[0].items()}
    # The client's answers hide a difference of images behind its product with a random share; not so these.
    assert all(seen[one] for one in seen if one[0] == "server" or one[1] == 0)
