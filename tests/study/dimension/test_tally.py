"""Counts and what follows from them, against numpy on gates that are kept."""

import numpy as np
import pytest
import torch
from torch import Tensor

from deepshare.sharing.sites import Site
from deepshare.study.dimension.tally import Tally, covariances, effective_dimension, strongest

C, H, W = 6, 3, 4
SITE = Site("act", C, H, W, "module")
CPU = torch.device("cpu")


def correlated_gates(images: int) -> Tensor:
    """Gates of a few hidden causes, with one channel that is always open and one that never is."""
    causes = torch.randn(images, 3, H, W)
    gates = torch.einsum("kc,nkhw->nchw", torch.randn(3, C), causes) + 0.3 * torch.randn(images, C, H, W) >= 0
    gates[:, 4], gates[:, 5] = True, False
    return gates


def tally_of(*parts: Tensor, places: Tensor | None = None, seed: int = 0) -> Tally:
    tally = Tally(SITE, torch.arange(H * W) if places is None else places, led=False, seed=seed, device=CPU)
    for part in parts:
        tally.add(part)
    return tally


def by_numpy(vectors: Tensor) -> float:
    """The effective dimension of (N, C) vectors from the eigenvalues of their covariance."""
    eigenvalues = np.linalg.eigvalsh(np.cov(vectors.double().numpy(), rowvar=False))
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())


def dimensions(pairs: Tensor, images: int) -> Tensor:
    opened = pairs.diagonal(dim1=1, dim2=2)
    return torch.cat([effective_dimension(part.matrix) for part in covariances(pairs, images, opened, opened)])


def test_the_dimension_at_every_position_is_that_of_numpys_eigenvalues() -> None:
    gates = correlated_gates(50)
    tally = tally_of(gates)
    expected = [by_numpy(gates.flatten(2)[..., place]) for place in range(H * W)]
    np.testing.assert_allclose(dimensions(tally.pairs, 50), expected, rtol=1e-12)


@pytest.mark.parametrize("channels", [1, 2, 5, 40])
def test_trace_and_squares_are_those_of_eigenvalues(channels: int) -> None:
    factors = torch.randn(7, channels, channels, dtype=torch.float64)
    matrices = factors @ factors.mT
    eigenvalues = np.linalg.eigvalsh(matrices.numpy())
    expected = eigenvalues.sum(-1) ** 2 / (eigenvalues**2).sum(-1)
    np.testing.assert_allclose(effective_dimension(matrices), expected, rtol=1e-10)


def test_independent_gates_have_all_dimensions_and_equal_ones_have_one() -> None:
    patterns = torch.tensor([[(n >> c) & 1 for c in range(C)] for n in range(2**C)], dtype=torch.bool)
    independent = patterns[:, :, None, None].expand(-1, C, H, W)
    assert dimensions(tally_of(independent).pairs, 2**C).tolist() == [C] * (H * W)
    equal = patterns[:, :1, None, None].expand(-1, C, H, W)
    assert dimensions(tally_of(equal).pairs, 2**C).tolist() == [1] * (H * W)


def test_where_nothing_varies_there_is_no_dimension() -> None:
    assert dimensions(tally_of(torch.ones(5, C, H, W, dtype=torch.bool)).pairs, 5).isnan().all()


def test_batches_do_not_change_a_single_count() -> None:
    gates = correlated_gates(37)
    whole, parts = tally_of(gates), tally_of(gates[:5], gates[5:6], gates[6:])
    for name in ("open", "right", "below", "pairs", "shuffled", "images"):
        assert torch.equal(torch.as_tensor(getattr(whole, name)), torch.as_tensor(getattr(parts, name))), name


def test_counts_are_those_of_the_gates() -> None:
    gates = correlated_gates(20)
    tally = tally_of(gates)
    assert torch.equal(tally.open, gates.sum(0))
    for place in range(H * W):
        vectors = gates.flatten(2)[..., place].float()
        assert torch.equal(tally.pairs[place], vectors.T @ vectors)
    both = sum(gates[n, 2, 1, 3] & gates[n, 2, 1, 2] for n in range(20))
    assert tally.right[2, 1, 2] == both
    both = sum(gates[n, 2, 1, 3] & gates[n, 2, 2, 3] for n in range(20))
    assert tally.below[2, 1, 3] == both


def test_chosen_positions_are_a_part_of_all() -> None:
    gates, places = correlated_gates(30), torch.tensor([1, 6, 11])
    assert torch.equal(tally_of(gates, places=places).pairs, tally_of(gates).pairs[places])


def test_the_shuffle_keeps_every_channel_of_every_image_and_moves_each_on_its_own() -> None:
    """Each image has one open position, the same for all channels: shuffled, two channels seldom meet."""
    images = 2_000
    gates = torch.zeros(images, C, H * W, dtype=torch.bool)
    gates[torch.arange(images), :, torch.randint(H * W, (images,))] = True
    tally = tally_of(gates.view(images, C, H, W))
    opened = tally.shuffled.diagonal(dim1=1, dim2=2)
    assert torch.equal(opened.sum(0), torch.full((C,), float(images)))
    together = tally.shuffled.sum(0)
    assert (tally.pairs.sum(0) == images).all()
    apart = together[~torch.eye(C, dtype=torch.bool)] / images
    assert (apart - 1 / (H * W)).abs().max() < 0.03
    assert (opened / images - 1 / (H * W)).abs().max() < 0.03


def test_the_shuffle_differs_from_image_to_image_and_follows_the_seed() -> None:
    one = torch.zeros(400, C, H, W, dtype=torch.bool)
    one[:, :, 0, 0] = True
    shuffled = tally_of(one, seed=1).shuffled
    assert (shuffled.diagonal(dim1=1, dim2=2) > 0).all()
    assert torch.equal(shuffled, tally_of(one, seed=1).shuffled)
    assert not torch.equal(shuffled, tally_of(one, seed=2).shuffled)


def test_a_follower_is_compared_with_its_leader() -> None:
    leading, following = correlated_gates(60), correlated_gates(60)
    following[:, 1] = ~leading[:, 2]
    places = torch.arange(H * W)
    leader = Tally(SITE, places, led=False, seed=0, device=CPU)
    follower = Tally(SITE, places, led=True, seed=1, device=CPU)
    for part in (slice(0, 25), slice(25, 60)):
        follower.add(following[part], leader.add(leading[part]))
    assert follower.leads is not None
    rows, columns = (tally.pairs.diagonal(dim1=1, dim2=2) for tally in (leader, follower))
    found = torch.cat([strongest(part) for part in covariances(follower.leads, 60, rows, columns)])
    assert found[:, 1].tolist() == pytest.approx([1.0] * (H * W))
    assert found[:, 4:].isnan().all()
    for place in range(H * W):
        a, b = (gates.flatten(2)[..., place].double().numpy() for gates in (leading, following))
        with np.errstate(invalid="ignore"):
            table = np.abs(np.corrcoef(a, b, rowvar=False)[:C, C:])
        np.testing.assert_allclose(found[place, :4], np.nanmax(table[:, :4], axis=0), rtol=1e-9)
