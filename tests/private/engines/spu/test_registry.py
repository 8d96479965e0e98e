"""Kernels, computed in the clear: they do what the program says."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("spu", reason="engine spu is not installed")

from deepshare.private.engines.spu.kernel import Kernel
from deepshare.private.engines.spu.linear import ProductKernel
from deepshare.private.engines.spu.local import SumKernel
from deepshare.private.engines.spu.registry import LOWERINGS, lower
from deepshare.private.engines.spu.shared import ScaleKernel, SelectKernel
from deepshare.private.ir.program import OPERATIONS, Program, SharedActivation, TopClasses
from tests.private.engines.spu.programs import resnet, varied

KINDS = ["shared", "relu", "masks", "channels", "neurons"]


def in_the_clear(kernels: tuple[Kernel, ...], images: torch.Tensor) -> torch.Tensor:
    import jax

    def compute(images: jax.Array, hidden: list[dict[str, jax.Array]]) -> jax.Array:
        values = {"images": images}
        for kernel, tensors in zip(kernels, hidden, strict=True):
            values[kernel.output] = kernel.compute([values[name] for name in kernel.inputs], tensors)
        return values[kernels[-1].output]

    hidden = [{name: value.float().numpy() for name, value in kernel.hidden.items()} for kernel in kernels]
    return torch.from_numpy(np.array(jax.jit(compute)(images.numpy(), hidden)))


CASES = [(varied, kind, absorbs) for kind in KINDS for absorbs in (False, True)]


@pytest.mark.parametrize(("make", "kind", "absorbs"), [*CASES, (resnet, "shared", True)])
def test_kernels_compute_the_program(make: Callable[[str], Program], kind: str, absorbs: bool) -> None:
    program = make(kind)
    images = torch.randn(2, *program.input_size)
    expected = program.evaluate(images)
    result = in_the_clear(lower(program, absorbs, 2), images)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("absorbs", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_outline_has_the_same_kernels_without_numbers(kind: str, absorbs: bool) -> None:
    program = varied(kind)
    whole, outline = lower(program, absorbs, 1), lower(program.outline(), absorbs, 1)
    assert len(whole) == len(outline)
    for one, other in zip(whole, outline, strict=True):
        assert (type(one), one.number, one.inputs, one.output, one.shape) == (
            (type(other), other.number, other.inputs, other.output, other.shape)
        )
        assert {name: value.shape for name, value in one.hidden.items()} == {
            name: value.shape for name, value in other.hidden.items()
        }
        assert all(value.is_meta for value in other.hidden.values())


def kinds(program: Program, absorbs: bool) -> list[type[Kernel]]:
    return [type(kernel) for kernel in lower(program, absorbs, 1)]


def test_what_absorbs_has_one_product_for_each_sum_and_no_scale() -> None:
    program = resnet("shared")
    plainly, absorbed = kinds(program, False), kinds(program, True)
    assert plainly.count(ProductKernel) == 21 and plainly.count(SumKernel) == 8 and plainly.count(ScaleKernel) == 16
    assert absorbed.count(ProductKernel) == 18 and absorbed.count(SumKernel) == 0 and absorbed.count(ScaleKernel) == 0
    assert absorbed.count(SelectKernel) == 16


def test_products_belong_to_layers_with_weights() -> None:
    program = resnet("shared")
    for kernel in lower(program, True, 1):
        if isinstance(kernel, ProductKernel):
            assert program.operations[kernel.number].kind in ("Convolution", "Linear")
        if isinstance(kernel, SelectKernel):
            assert isinstance(program.operations[kernel.number], SharedActivation)


def test_every_operation_is_lowered_or_refused() -> None:
    assert set(LOWERINGS) == set(OPERATIONS) - {TopClasses}
