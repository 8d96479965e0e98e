"""Products are exact mod 2^64, whatever the numbers and however the kernel moves."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.limb_matmul import (
    Geometry,
    LimbWeight,
    PlainWeight,
    Resampling,
    RingWeight,
    Weight,
    WholeWeight,
    plain_weight,
    ring_weight,
)

LOW, HIGH = -(1 << 63), (1 << 63) - 1
LARGEST_PLAIN = 1 << 22
# Numbers at which a limb is at its end or passes into the next.
EDGES = [LOW, LOW + 1, -(1 << 31) - 1, -(1 << 31), -(1 << 21), -1, 0, 1, (1 << 21) - 1, 1 << 21, (1 << 31) - 1, 1 << 31]
EDGES += [(1 << 32) - 1, (1 << 43) - 1, 1 << 43, HIGH - (1 << 21), HIGH - (1 << 31), HIGH - 1, HIGH]


def ring(*shape: int) -> Tensor:
    return torch.randint(LOW, HIGH, shape)


def plain(*shape: int) -> Tensor:
    return torch.randint(-(1 << 15), 1 << 15, shape)


def convolved(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Convolution tap by tap, in torch's int64, which wraps."""
    (high, wide), (out, each, *kernel) = geometry.padding, weight.shape
    x = torch.nn.functional.pad(x, (wide, wide, high, high))
    rows, columns = geometry.positions((x.shape[2], x.shape[3]), (kernel[0], kernel[1]))
    result = torch.zeros(len(x), out, rows, columns, dtype=torch.int64)
    for o, c, i, j in itertools.product(range(out), range(each), *map(range, kernel)):
        channel = x[:, o // (out // geometry.groups) * each + c]
        seen = channel[
            :, i * geometry.dilation[0] :: geometry.stride[0], j * geometry.dilation[1] :: geometry.stride[1]
        ]
        result[:, o] += weight[o, c, i, j] * seen[:, :rows, :columns]
    return result


GEOMETRIES = [
    (Geometry(), (8, 4, 3, 3)),
    (Geometry(padding=(1, 1)), (8, 4, 3, 3)),
    (Geometry(stride=(2, 2), padding=(1, 1)), (8, 4, 3, 3)),
    (Geometry(stride=(2, 2)), (8, 4, 1, 1)),
    (Geometry(stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2), (6, 2, 3, 2)),
    (Geometry(padding=(2, 2), dilation=(2, 2)), (3, 4, 3, 3)),
    (Geometry(padding=(1, 1), groups=4), (4, 1, 3, 3)),
    (Geometry(padding=(0, 3)), (5, 4, 1, 7)),
]


@pytest.mark.parametrize(("geometry", "shape"), GEOMETRIES)
@pytest.mark.parametrize("images", [1, 3])
def test_convolutions_are_exact(geometry: Geometry, shape: tuple[int, ...], images: int) -> None:
    x, small, large = ring(images, 4, 9, 8), plain(*shape), ring(*shape)
    assert torch.equal(PlainWeight(small, geometry)(x), convolved(x, small, geometry))
    assert torch.equal(RingWeight(large, geometry)(x), convolved(x, large, geometry))
    if geometry.groups == 1:
        assert torch.equal(WholeWeight(large, geometry)(x), convolved(x, large, geometry))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_convolution_is_exact(data: st.DataObject) -> None:
    def pair(least: int, most: int) -> tuple[int, int]:
        return data.draw(st.integers(least, most)), data.draw(st.integers(least, most))

    groups, kernel, dilation = data.draw(st.integers(1, 3)), pair(1, 4), pair(1, 2)
    geometry = Geometry(stride=pair(1, 3), padding=pair(0, 3), dilation=dilation, groups=groups)
    each, outputs = data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    size = [(k - 1) * d + 1 + data.draw(st.integers(0, 6)) for k, d in zip(kernel, dilation, strict=True)]
    torch.manual_seed(data.draw(st.integers(0, 1 << 30)))
    x, shape = ring(data.draw(st.integers(1, 3)), groups * each, *size), (outputs, each, *kernel)
    kinds: list[tuple[type[Weight], Tensor]] = [(PlainWeight, plain(*shape)), (RingWeight, ring(*shape))]
    if groups == 1:
        kinds.append((WholeWeight, ring(*shape)))
    for kind, weight in kinds:
        product = kind(weight, geometry)(x)
        assert torch.equal(product, convolved(x, weight, geometry)) and product.is_contiguous()


@pytest.mark.parametrize(
    ("capability", "groups", "whole"), [("AVX512", 1, True), ("AVX512", 2, False), ("AVX2", 1, False)]
)
def test_torch_multiplies_whole_numbers_where_it_is_fast(
    monkeypatch: pytest.MonkeyPatch, capability: str, groups: int, whole: bool
) -> None:
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    weight, geometry = plain(4, 2, 3, 3), Geometry(groups=groups)
    assert isinstance(plain_weight(weight, geometry), WholeWeight if whole else PlainWeight)
    assert isinstance(ring_weight(weight, geometry), WholeWeight if whole else RingWeight)
    assert isinstance(plain_weight(plain(4, 2)), WholeWeight) == (capability == "AVX512")


@pytest.mark.parametrize("kind", [RingWeight, WholeWeight])
def test_a_batch_that_is_cut_equals_its_images(monkeypatch: pytest.MonkeyPatch, kind: type[Weight]) -> None:
    monkeypatch.setattr("deepshare.private.engines.gateshare.crypto.limb_matmul._CHUNK", 5000)
    x, weight, geometry = ring(7, 4, 9, 8), ring(6, 4, 3, 3), Geometry(padding=(1, 1))
    product = kind(weight, geometry)
    assert torch.equal(product(x), torch.cat([product(image[None]) for image in x]))
    assert torch.equal(product(x), convolved(x, weight, geometry))


@pytest.mark.parametrize("kind", [RingWeight, PlainWeight, WholeWeight])
def test_memory_that_is_used_again_holds_nothing_of_a_result(kind: type[Weight]) -> None:
    geometry, weight, other = Geometry(padding=(1, 1)), plain(6, 4, 3, 3), plain(5, 4, 3, 3)
    small, large, x = kind(weight, geometry), kind(other, geometry), ring(1, 4, 9, 8)
    first = small(x)
    large(ring(3, 4, 9, 8))
    large(ring(1, 4, 5, 5))
    assert torch.equal(first, convolved(x, weight, geometry))
    assert torch.equal(small(x), first)


@pytest.mark.parametrize(("bits", "bytes_each"), [(15, 2), (16, 4), (31, 4), (32, 8), (63, 8)])
def test_whole_weights_take_as_few_bytes_as_their_numbers_need(bits: int, bytes_each: int) -> None:
    low, high = -(1 << bits), (1 << bits) - 1
    for end in (low, high):
        weight, x = torch.randint(-3, 3, (300, 2, 1, 1)), ring(2, 2, 3, 3)
        weight[137, 1] = end
        product = WholeWeight(weight, Geometry())
        assert sum(panel.nbytes for panel in product._panels) == bytes_each * weight.numel()
        assert torch.equal(product(x), convolved(x, weight, Geometry()))
        matrix = weight.flatten(1)
        assert torch.equal(WholeWeight(matrix)(x[..., 0, 0]), x[..., 0, 0] @ matrix.T)


@pytest.mark.parametrize(("geometry", "shape"), GEOMETRIES)
@pytest.mark.parametrize(("positions", "images"), [(1, 1), (1, 3), (9, 2), (1000, 1), (1000, 3)])
def test_parts_on_several_cores_are_the_whole(
    monkeypatch: pytest.MonkeyPatch, geometry: Geometry, shape: tuple[int, ...], positions: int, images: int
) -> None:
    for name, value in {
        "CORES": 3,
        "_FEWEST_POSITIONS": positions,
        "_FEWEST_OUTPUTS": 2,
        "_FEWEST_PRODUCTS": 1,
    }.items():
        monkeypatch.setattr(f"deepshare.private.engines.gateshare.crypto.limb_matmul.{name}", value)
    x, small, large = ring(images, 4, 9, 8), plain(*shape), ring(*shape)
    for product, weight in ((PlainWeight(small, geometry), small), (RingWeight(large, geometry), large)):
        assert torch.equal(product(x), convolved(x, weight, geometry))
    if geometry.groups == 1:
        assert torch.equal(WholeWeight(large, geometry)(x), convolved(x, large, geometry))


@pytest.mark.parametrize(("images", "inner", "out"), [(1, 512, 100), (40, 3000, 7), (3, 1, 1), (1, 4608, 16)])
def test_matrices_are_exact(images: int, inner: int, out: int) -> None:
    x, small, large = ring(images, inner), plain(out, inner), ring(out, inner)
    for product, weight in ((PlainWeight(small), small), (RingWeight(large), large), (WholeWeight(large), large)):
        assert torch.equal(product(x), x @ weight.T)
        assert product(x).is_contiguous()


@pytest.mark.parametrize(("rows", "out"), [(40, 7), (7, 40), (1, 5), (5, 1), (8, 8)])
def test_parts_of_a_matrix_are_the_whole(monkeypatch: pytest.MonkeyPatch, rows: int, out: int) -> None:
    for name, value in {"CORES": 3, "_FEWEST_OUTPUTS": 2, "_FEWEST_PRODUCTS": 1}.items():
        monkeypatch.setattr(f"deepshare.private.engines.gateshare.crypto.limb_matmul.{name}", value)
    x, small, large = ring(rows, 3000), plain(out, 3000), ring(out, 3000)
    for product, weight in ((PlainWeight(small), small), (RingWeight(large), large), (WholeWeight(large), large)):
        assert torch.equal(product(x), x @ weight.T)


@given(st.data())
def test_edges_times_edges_are_exact(data: st.DataObject) -> None:
    inner = data.draw(st.integers(1, 40))
    numbers = st.lists(st.sampled_from(EDGES) | st.integers(LOW, HIGH), min_size=inner, max_size=inner)
    small = st.lists(st.integers(-LARGEST_PLAIN, LARGEST_PLAIN), min_size=inner, max_size=inner)
    x, large, few = data.draw(numbers), data.draw(numbers), data.draw(small)
    for kind, weight in ((RingWeight, large), (WholeWeight, large), (PlainWeight, few)):
        exact = sum(a * b for a, b in zip(x, weight, strict=True))
        assert (int(kind(torch.tensor([weight]))(torch.tensor([x]))) - exact) % (1 << 64) == 0


@pytest.mark.parametrize("x", EDGES)
@pytest.mark.parametrize("inner", [1023, 1024, 1025, 5000])
def test_the_largest_sums_are_exact(x: int, inner: int) -> None:
    for kind, weight in (
        (RingWeight, x),
        (RingWeight, LOW),
        (WholeWeight, x),
        (PlainWeight, 1 << 15),
        (PlainWeight, -(1 << 15)),
    ):
        result = kind(torch.full((2, inner), weight))(torch.full((3, inner), x))
        assert torch.equal(result, torch.full((3, 2), 1) * x * weight * inner)


@pytest.mark.parametrize("x", EDGES)
def test_the_largest_plain_weights_are_exact(x: int) -> None:
    weight = torch.tensor([[LARGEST_PLAIN, -LARGEST_PLAIN, LARGEST_PLAIN], [1, 2, LARGEST_PLAIN - 3]])
    row = torch.full((1, 3), x)
    assert torch.equal(PlainWeight(weight)(row), row @ weight.T)


@pytest.mark.parametrize("inner", [1024, 1025, 1365, 2048, 2049])
def test_odd_sums_of_the_largest_limbs_are_exact(inner: int) -> None:
    limb = (1 << 21) - 1
    x, weight = torch.full((1, inner), limb | limb << 22), torch.full((1, inner), limb | limb << 22)
    weight[0, 0] -= 1  # an even sum above 2^53 would be exact by luck
    assert torch.equal(RingWeight(weight)(x), x @ weight.T)


def blocks(product: LimbWeight) -> list[tuple[int, int]]:
    return [(where.start, where.stop) for where, _ in product._blocks]


def test_weights_are_cut_only_where_sums_could_pass_the_limit() -> None:
    assert blocks(PlainWeight(torch.full((3, 128), 1 << 15))) == [(0, 128)]
    assert blocks(PlainWeight(torch.full((3, 129), 1 << 15))) == [(0, 128), (128, 129)]
    uneven = torch.zeros(2, 10, dtype=torch.int64)
    uneven[0, 3] = uneven[1, 4] = uneven[0, 7] = LARGEST_PLAIN
    assert blocks(PlainWeight(uneven)) == [(0, 7), (7, 10)]


@pytest.mark.parametrize("weight", [LARGEST_PLAIN + 1, -LARGEST_PLAIN - 1, HIGH, LOW])
def test_a_plain_weight_that_is_too_large_is_refused(weight: int) -> None:
    for kind in (PlainWeight, plain_weight):
        with pytest.raises(EngineError, match=f"a weight of {abs(weight)} units"):
            kind(torch.tensor([[1, weight, 1]]))


def test_resampling_is_rows_times_map_times_columns() -> None:
    x, rows, columns = ring(2, 3, 8, 6), plain(4, 8), plain(5, 6)
    exact = torch.einsum("ah,nchw,bw->ncab", rows, x, columns)
    assert torch.equal(Resampling(rows, columns)(x), exact)


def test_pooling_of_shares_is_pooling_of_what_they_share() -> None:
    secret, mask = torch.randint(-1000, 1000, (2, 3, 8, 8)), ring(2, 3, 8, 8)
    windows = torch.eye(4, dtype=torch.int64).repeat_interleave(2, 1)
    pooled = Resampling(windows, windows)
    assert torch.equal(pooled(secret - mask) + pooled(mask), secret.unfold(2, 2, 2).unfold(3, 2, 2).sum((-1, -2)))
