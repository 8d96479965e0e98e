"""Arithmetic of the shared activation y = x (alpha gate + beta), with a memory-saving backward."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint

# Elements per thread of a slice of the batch, so that its temporaries stay in cache.
_SLICE = 2**17


def soft_gate(x: Tensor, sharpness: float) -> Tensor:
    """Differentiable gate Phi(sharpness x), with the standard normal CDF Phi."""
    gate: Tensor = torch.special.ndtr(sharpness * x)
    return gate


def hard_gate(x: Tensor) -> Tensor:
    """Gate of ReLU as booleans: x >= 0."""
    return x >= 0


def activate(x: Tensor, gates: Tensor, index: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Multiply each channel by its affine gate.

    Args:
        x: Input (N, C, ...).
        gates: Gates (N, G, ...) with the batch and map of x; bool if no gradient flows through them.
        index: Channel of `gates` for each channel of x.
        alpha: Weight of the gate, one per channel.
        beta: Offset of the gate, one per channel.

    Returns:
        x (alpha gates[index] + beta), with the dtype and memory format of x.
    """
    if torch.compiler.is_exporting():
        return x * _scale(gates.to(x.dtype).index_select(1, index), _per_channel(alpha, x), _per_channel(beta, x))
    if not torch.compiler.is_compiling():
        return cast(Tensor, _Activate.apply(x, gates, index, alpha, beta))  # type: ignore[no-untyped-call]
    if not torch.is_grad_enabled():
        return _compilable(x, gates, index, alpha, beta)
    # Otherwise the compiler would keep the scale of every site for the backward pass.
    y = checkpoint(_compilable, x, gates, index, alpha, beta, use_reentrant=False, preserve_rng_state=False)
    return cast(Tensor, y)


def assignment(preference: Tensor) -> Tensor:
    """One-hot matrix of the largest preference in each row, with a straight-through gradient.

    The preference for a gate rises where more of that gate would lower the loss.
    """
    chosen = F.one_hot(preference.argmax(1), preference.shape[1]).to(preference.dtype)
    return chosen + (preference - preference.detach())


def activate_assigned(x: Tensor, gates: Tensor, assigned: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Like `activate`, with a differentiable matrix (C, G) that assigns gates to channels."""
    return _by_product(x, gates, assigned.t() * alpha, beta)


def _compilable(x: Tensor, gates: Tensor, index: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The formula as a matrix product; compiled code would gather and scatter channels one by one."""
    return _by_product(x, gates, alpha.new_zeros(gates.shape[1], x.shape[1]).scatter(0, index[None], alpha[None]), beta)


def _by_product(x: Tensor, gates: Tensor, weight: Tensor, beta: Tensor) -> Tensor:
    scale = gates.to(x.dtype).movedim(1, -1) @ weight.to(x.dtype) + beta.to(x.dtype)
    return x * scale.movedim(-1, 1)


def laid_out(values: Tensor, x: Tensor) -> Tensor:
    """Values to broadcast to x of shape (N, C, H, W), with its dtype and memory format.

    In another format every read of channels_last data would be strided, and with fewer channels than a vector register
    holds the loop would not vectorise; rows of maps are long enough.
    """
    values = values.to(x.dtype)
    if x.stride(1) != 1 or len(values) != x.shape[1] or torch.compiler.is_exporting():
        return values
    return values.expand(-1, -1, x.shape[3]).permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return laid_out(values.view(-1, 1, 1), x) if x.dim() == 4 else values.to(x.dtype)


def _spread(gates: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """Gate of each channel in the memory format of x; index_select alone loses channels_last."""
    return torch.index_select(gates.to(x.dtype), 1, index, out=torch.empty_like(x))


def _scale(spread: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.addcmul(beta, alpha, spread)


class _Activate(torch.autograd.Function):
    """Keeps x and the small gates; plain autograd would keep three more maps."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, gates: Tensor, index: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(x, gates, index, alpha, beta)
        alpha, beta = _per_channel(alpha, x), _per_channel(beta, x)
        y = torch.empty_like(x)
        for xs, gs, ys in _slices(x, gates.contiguous(), y):
            torch.mul(xs, _scale(_spread(gs, index, xs), alpha, beta), out=ys)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gates, index, alpha, beta = ctx.saved_tensors
        _, needs_gates, _, needs_alpha, needs_beta = ctx.needs_input_grad
        wide = torch.promote_types(x.dtype, torch.float32)
        grad_x = torch.empty_like(x)
        grad_gates = torch.zeros_like(gates, dtype=wide, memory_format=torch.contiguous_format)
        sums = x.new_zeros(2, x.shape[1], dtype=wide)
        rest = [d for d in range(x.dim()) if d != 1]
        a, b = _per_channel(alpha, x), _per_channel(beta, x)
        for xs, gs, ds, dxs, dgs in _slices(x, gates.contiguous(), grad, grad_x, grad_gates):
            spread = _spread(gs, index, xs)
            torch.mul(ds, _scale(spread, a, b), out=dxs)
            product = ds * xs
            if needs_gates:
                dgs.index_add_(1, index, (product * a).to(wide))
            if needs_beta:
                sums[1] += product.sum(rest, dtype=wide)
            if needs_alpha:
                sums[0] += product.mul_(spread).sum(rest, dtype=wide)
        return (
            grad_x,
            grad_gates.to(gates.dtype) if needs_gates else None,
            None,
            sums[0].to(alpha.dtype) if needs_alpha else None,
            sums[1].to(beta.dtype) if needs_beta else None,
        )


def _slices(x: Tensor, *others: Tensor) -> "zip[tuple[Tensor, ...]]":
    """Split x and tensors of its batch size along the batch, which saves time on a CPU."""
    elements = _SLICE * torch.get_num_threads() if x.is_cpu else x.numel()
    samples = max(1, elements // max(1, x.shape[1:].numel()))
    return zip(*(v.split(samples) for v in (x, *others)), strict=True)
