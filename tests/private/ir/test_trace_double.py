"""Casts and tensors of other precision, and a softmax at the end, on the way from a network to its program."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import UnsupportedModelError
from deepshare.private.ir.trace import translate

SIZE = (3, 8, 8)
SAME = nn.Identity()


class Net(nn.Module):
    def __init__(self, do: Callable[[Tensor], Tensor] = SAME, end: Callable[[Tensor], Tensor] = SAME) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc, self.do, self.end = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5), do, end
        self.loose = torch.rand(8, 8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(torch.relu(self.do(self.conv(x))), self.loose)
        return self.end(self.fc(x.mean((2, 3))))


@pytest.mark.parametrize(
    "do",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x.half().type_as(x),
        lambda x: F.batch_norm(x, torch.zeros(8), torch.full((8,), 0.3)),
        lambda x: x @ torch.rand(8, 8, generator=torch.Generator().manual_seed(0)),
        lambda x: F.conv2d(x, torch.ones(8, 1, 1, 1, dtype=torch.float32), groups=8),
        lambda x: x / torch.tensor([0.3] * 8).view(8, 1, 1),
        lambda x: 1 / torch.tensor(0.7) * x,
    ],
)
def test_what_a_forward_asks_for_in_other_precision_is_translated(do: Callable[[Tensor], Tensor]) -> None:
    model, images = Net(do).eval(), torch.randn(2, *SIZE)
    program = translate(model, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(program.evaluate(images.double()).float(), model(images), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "end", [nn.LogSoftmax(dim=1), nn.Softmax(dim=-1), lambda x: F.log_softmax(x, 1), lambda x: x.softmax(dim=1)]
)
def test_a_softmax_at_the_end_is_left_to_the_client(end: Callable[[Tensor], Tensor]) -> None:
    model, plain, images = Net(end=end).eval(), Net().eval(), torch.randn(2, *SIZE)
    logits = translate(model, SIZE).evaluate(images.double()).float()
    with torch.no_grad():
        torch.testing.assert_close(logits, plain(images))
        torch.testing.assert_close(end(logits), model(images))


@pytest.mark.parametrize(
    "end", [lambda x: x.softmax(0), lambda x: 2 * x.softmax(1), lambda x: F.softmin(x, 1), lambda x: x + x.softmax(1)]
)
def test_another_softmax_is_refused(end: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedModelError, match="calls softm"):
        translate(Net(end=end), SIZE)
