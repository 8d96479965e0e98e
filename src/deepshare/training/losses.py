"""The loss of every phase: cross-entropy, and distillation where there is a teacher."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NO_LABEL = -100  # no label of any data set


def cross_entropy(logits: Tensor, labels: Tensor, ignore: int | None = None) -> Tensor:
    """Mean cross-entropy over images, or over labelled pixels; 0 where nothing is labelled."""
    if ignore is None:
        return F.cross_entropy(logits, labels)
    summed = F.cross_entropy(logits, labels, ignore_index=ignore, reduction="sum")
    return summed / (labels != ignore).sum().clamp(min=1)


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) of the softened predictions, summed over classes and averaged over the batch."""
    student = F.log_softmax(logits / temperature, dim=1)
    target = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(student, target, reduction="batchmean", log_target=True) * temperature**2


def mean_loss(batches: Sequence[tuple[Tensor, Tensor]], ignore: int | None) -> Callable[[nn.Module], float]:
    """Give a function from a network to its mean cross-entropy over some batches."""

    @torch.no_grad()
    def loss(network: nn.Module) -> float:
        sums = [len(images) * cross_entropy(network(images), labels, ignore) for images, labels in batches]
        return float(sum(sums)) / sum(len(images) for images, _ in batches)

    return loss
