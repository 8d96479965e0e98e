"""The arithmetic of the shared activation: y = x (alpha gate + beta), with a backward that keeps little."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


def soft_gate(x: Tensor, sharpness: float) -> Tensor:
    """The differentiable gate Phi(sharpness x), Phi being the standard normal distribution function."""
    return torch.special.ndtr(sharpness * x)


def hard_gate(x: Tensor) -> Tensor:
    """The gate of ReLU as booleans: open from zero on."""
    return x >= 0


def activate(x: Tensor, gates: Tensor, index: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Multiply each channel by its affine gate.

    Args:
        x: Input (N, C, ...).
        gates: Gates (N, G, ...) with the batch and the map of x; bool where no gradient flows through them.
        index: For each channel of x, the channel of gates that it reads.
        alpha: Weight of the gate, one per channel.
        beta: What is added to the gate, one per channel.

    Returns:
        x (alpha gates[index] + beta), of the dtype and the memory format of x.
    """
    if torch.compiler.is_compiling():
        return x * _scale(x, gates, index, alpha, beta)
    return cast(Tensor, _Activate.apply(x, gates, index, alpha, beta))  # type: ignore[no-untyped-call]


def _scale(x: Tensor, gates: Tensor, index: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The factor alpha gates[index] + beta in the dtype of x."""
    alpha, beta = (_per_channel(v, x) for v in (alpha, beta))
    spread = gates.index_select(1, index)
    if gates.dtype == torch.bool:
        return torch.where(spread, (alpha + beta).to(x.dtype), beta.to(x.dtype))
    return torch.addcmul(beta.to(x.dtype), alpha.to(x.dtype), spread.to(x.dtype))


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 2))


class _Activate(torch.autograd.Function):
    """Keeps x and the small gates; plain autograd would keep three maps more."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, gates: Tensor, index: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(x, gates, index, alpha, beta)
        return torch.mul(x, _scale(x, gates, index, alpha, beta), out=torch.empty_like(x))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gates, index, alpha, beta = ctx.saved_tensors
        _, needs_gates, _, needs_alpha, needs_beta = ctx.needs_input_grad
        grad_gates = grad_alpha = grad_beta = None
        rest = [d for d in range(x.dim()) if d != 1]
        product = grad * x
        if needs_beta:
            grad_beta = product.sum(rest, dtype=_wide(x)).to(beta.dtype)
        if needs_alpha:
            spread = gates.index_select(1, index)
            grad_alpha = (product * spread).sum(rest, dtype=_wide(x)).to(alpha.dtype)
        if needs_gates:
            product.mul_(_per_channel(alpha, x).to(x.dtype))
            grad_gates = torch.zeros_like(gates).index_add_(1, index, product.to(gates.dtype))
        grad_x = torch.mul(grad, _scale(x, gates, index, alpha, beta), out=torch.empty_like(x))
        return grad_x, grad_gates, None, grad_alpha, grad_beta


def _wide(x: Tensor) -> torch.dtype:
    """The dtype in which sums over a batch are taken: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)
