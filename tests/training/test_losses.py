"""Losses by hand-worked numbers."""

import math

import pytest
import torch
import torch.nn.functional as F

from deepshare.training.loop import cross_entropy, distillation


def test_cross_entropy_of_even_odds() -> None:
    assert cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, 3])).item() == pytest.approx(math.log(4))


def test_ignored_pixels_count_nowhere() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 7.0]], [[0.0, 0.0, -3.0]]]])
    labels = torch.tensor([[[0, 1, 255]]])
    expected = (math.log(1 + math.exp(-2)) + math.log(2)) / 2
    assert cross_entropy(logits, labels, ignore=255).item() == pytest.approx(expected)


def test_an_image_without_a_label_costs_nothing() -> None:
    logits = torch.randn(1, 2, 3, 3, requires_grad=True)
    loss = cross_entropy(logits, torch.full((1, 3, 3), 255), ignore=255)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.abs().sum() == 0


def test_distillation_by_hand() -> None:
    # At T = 4 the teacher says 3/4 and 1/4, the student 1/2 and 1/2: KL = log 2 - H(1/4).
    teacher = torch.tensor([[4 * math.log(3), 0.0]])
    expected = 16 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert distillation(torch.zeros(1, 2), teacher, 4.0).item() == pytest.approx(expected, rel=1e-5)


def test_distillation_is_a_mean_over_the_batch_and_zero_for_equals() -> None:
    teacher = torch.tensor([[4 * math.log(3), 0.0], [1.0, 1.0]])
    single = distillation(torch.zeros(1, 2), teacher[:1], 4.0)
    assert torch.isclose(distillation(torch.zeros(2, 2), teacher, 4.0), single / 2)
    assert distillation(teacher, teacher, 4.0).abs() < 1e-6


def test_high_temperature_leaves_the_scale_of_the_gradient() -> None:
    # T^2 makes up for the 1 / T^2 of the softened gradient, which tends to the difference of the centred logits / C.
    logits, teacher = torch.randn(5, 7, dtype=torch.double, requires_grad=True), torch.randn(5, 7, dtype=torch.double)
    (gradient,) = torch.autograd.grad(distillation(logits, teacher, 1e4), logits)
    difference = logits.detach() - teacher
    expected = (difference - difference.mean(1, keepdim=True)) / 7 / 5
    assert torch.allclose(gradient, expected, atol=1e-3)
    assert not torch.allclose(F.normalize(gradient), F.normalize(-expected))
