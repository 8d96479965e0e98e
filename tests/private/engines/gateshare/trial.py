"""All three parties in this process, with a real dealer and real frames, and everything that they see written down."""

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from deepshare import maxpool_to_relu, piecewise_to_relu, plan, share, zoo
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.methods.square import curve, curved_relus
from deepshare.private.engines.gateshare.client import ClientMaterial, ClientParty
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import LayerMeter
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat, calibrate
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.preprocessing.dealer import LotDealer
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import ProtocolStep
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.engines.gateshare.server import ServerParty
from deepshare.private.ir.program import Program
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.channel import Channel

SIZE = (3, 8, 8)


@dataclass(frozen=True, eq=False)
class Watched(Schedule):
    """A schedule that keeps the result of every step."""

    seen: dict[int, Tensor] = field(default_factory=dict)

    def run(self, do: Any) -> Tensor:
        def kept(step: ProtocolStep, inputs: list[Tensor]) -> Tensor:
            self.seen[step.number] = do(step, inputs)
            return self.seen[step.number]

        return super().run(kept)


def watched(program: Program, number_format: NumberFormat, *, dealt: bool = True) -> Watched:
    """A schedule, watched."""
    made = schedule(program, number_format, dealt=dealt)
    return Watched(made.program, made.number_format, made.steps, made.output)


class Tapped(Channel):
    """A channel that keeps what it sends: the step and the bytes."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        super().__init__(connection, peer)
        self.messages: list[tuple[int, bytes]] = []

    def _send(self, step: int, views: list[memoryview]) -> None:
        self.messages.append((step, b"".join(views)))
        super()._send(step, views)


@dataclass(eq=False)
class Run:
    """What happened in one inference.

    Attributes:
        logits: The client's, in the ring.
        noise: What the server added.
        shares: What the client truncated, by step.
        values: Of every step the sum of both shares.
        from_server: Online messages.
        from_client: Online messages.
        server: The server's online cost.
        client: The client's.
    """

    logits: Tensor
    noise: Tensor
    shares: dict[int, Tensor]
    values: dict[int, Tensor]
    from_server: list[tuple[int, bytes]]
    from_client: list[tuple[int, bytes]]
    server: dict[int, Part]
    client: dict[int, Part]


class Trial:
    """A session, with a dealer or of the two parties alone."""

    def __init__(self, program: Program, number_format: NumberFormat | None = None, *, dealt: bool = True) -> None:
        self.program = program
        self.number_format = number_format or calibrate(program)
        self.schedule = watched(program, self.number_format, dealt=dealt)
        self.public = watched(program.outline(), self.number_format, dealt=dealt)
        self.dealer = LotDealer(self.public)
        self.server = ServerParty(self.schedule, self.dealer.seed)
        self.masked_weights = dict(self.server.masked_weights())
        self.client = ClientParty(self.public, self.masked_weights)

    def lots(self, images: int) -> tuple[Lot, Lot]:
        """The server's and the client's half of a lot."""
        return self.dealer.deal(images)

    def run(self, images: Tensor) -> Run:
        """Deal for a batch and run it."""
        for_server, for_client = self.lots(len(images))
        material = self.client.preprocess(for_client, fresh_seed())
        return self.online(images, [(for_server, range(len(images)))], material, dict(self.public.seen))

    def online(
        self,
        images: Tensor,
        lots: Sequence[tuple[Lot, Sequence[int]]],
        material: ClientMaterial,
        mine: dict[int, Tensor],
    ) -> Run:
        """Run a batch with lots that are dealt and preprocessed by the client, whose shares are given."""
        theirs = self.server.preprocess(lots, material.openings)
        left, right = socket.socketpair()
        server, client = Tapped(left, "client"), Tapped(right, "server")
        count = len(self.program.operations)
        layers = LayerMeter([server], "server_bytes", count), LayerMeter([client], "client_bytes", count)
        noise: list[Tensor] = []
        thread = threading.Thread(
            target=lambda: noise.append(self.server.infer(theirs, server, layers[0])), name="server"
        )
        thread.start()
        logits = self.client.infer(images, material, client, layers[1])
        thread.join()
        server.close()
        client.close()
        values = {number: value + mine[number] for number, value in self.schedule.seen.items() if number in mine}
        parts = layers[0].parts, layers[1].parts
        return Run(
            logits, noise[0], truncated_shares(self.schedule, mine), values, server.messages, client.messages, *parts
        )


def gated(h: Tensor, x: Tensor, xb: Tensor) -> Tensor:
    """A party's share of u = h x + (1 - 2 h) xb, from its shares of x and xb."""
    return torch.where(h, x - xb, xb)


def truncated_shares(steps: Schedule, mine: dict[int, Tensor]) -> dict[int, Tensor]:
    """The client's shares that are truncated, by the step that truncates, from its shares of all results."""
    return {step.number: mine[step.inputs[0]] for step in steps.steps if isinstance(step, TruncationStep)}


def shuffled_norms(model: nn.Module) -> nn.Module:
    """Running statistics as training leaves them: each its own."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    return model.eval()


def shared_resnet(width: int = 4, budget: int | str = "10%", size: tuple[int, ...] = SIZE) -> nn.Module:
    """Leaders, followers, skips, and convolutions on both sides of a sum."""
    model = shuffled_norms(zoo.resnet18(width=width, num_classes=10))
    shared = share(model, plan(model, size, budget), start="uniform").eval()
    for name, parameter in shared.named_parameters():
        if name.endswith(("alpha", "beta")):
            nn.init.normal_(parameter, 0.5, 0.3)
    return shared


def curved_resnet() -> nn.Module:
    """The same with squares beside the gates, which need smaller numbers: squares of squares soon are large."""
    shared = shared_resnet()
    curve(shared)
    for site in curved_relus(shared):
        nn.init.normal_(site.curve.square, 0.0, 0.3)
    for module in shared.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            module.running_var *= 4
    return shared.eval()


def polynomials(*shape: int, share: float) -> GatedPolynomial:
    """Some neurons with gates, the others with quadratics, each channel its own."""
    values = [nn.Parameter(scale * torch.randn(shape[0], 1, 1)) for scale in (0.1, 0.5, 0.1)]
    site = GatedPolynomial(shape, values)
    site.set_mask(torch.rand(shape) < share)
    return site


class Quadratic(nn.Module):
    """Quadratics beside gates, without any, for a vector, and for all channels alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3, stride=2)
        self.some, self.none = polynomials(6, 6, 6, share=0.2), polynomials(8, 2, 2, share=0.0)
        self.third, self.vector = nn.Linear(32, 12), polynomials(12, 1, 1, share=0.3)
        self.fourth, self.same = nn.Linear(12, 12), GatedPolynomial((12, 1, 1), [torch.full((1, 1, 1), 0.1)] * 3)
        self.same.set_mask(torch.zeros(12, 1, 1, dtype=torch.bool))
        self.last = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.none(self.second(self.some(self.first(x))))
        return self.last(self.same(self.fourth(self.vector(self.third(x.flatten(1))))))


class Apart(nn.Module):
    """Quadratics of one tensor and of two, of single neurons, read twice, waited for late; the last is the result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.one, self.two, self.three = (polynomials(4, 8, 8, share=0.0) for _ in range(3))
        self.neurons = GatedPolynomial((4, 8, 8), [0.1 * torch.randn(4, 8, 8) for _ in range(3)])
        self.neurons.set_mask(torch.rand(4, 8, 8) < 0.5)
        self.relu, self.last, self.end = nn.ReLU(), nn.Linear(4, 6), polynomials(6, 1, 1, share=0.5)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.second(x)
        early = self.one(a)
        both = self.two(a) + self.three(b)
        x = self.relu(both) + both + self.neurons(b)
        return self.end(self.last((x + early).mean((2, 3))))


class Odd(nn.Module):
    """Whatever a residual network has not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=2, dilation=2)
        self.second = nn.Conv2d(8, 8, (3, 1), stride=(2, 1), padding=(1, 0), groups=4)
        self.some = GatedPolynomial((16, 5, 9))
        self.some.set_mask(torch.rand(16, 5, 9) < 0.3)
        self.none = GatedPolynomial((16, 5, 9))
        self.none.set_mask(torch.zeros(16, 5, 9, dtype=torch.bool))
        self.third = nn.Linear(16 * 9, 12)
        self.last = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.first(x)), 3, 1, padding=1)
        x = F.interpolate(self.second(x), size=(5, 9), mode="bilinear", align_corners=False)
        x = torch.cat([x, x + F.relu(x)], 1)
        x = x.view(-1, 2, 8, 5, 9).transpose(1, 2).flatten(1, 2)
        x = F.adaptive_avg_pool2d(self.none(self.some(x)), (3, 3))
        return self.last(F.relu(self.third(x.flatten(1))))


class Excited(nn.Module):
    """Max-pooling and squeeze-and-excite, with padding, slices, differences and public constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        self.squeeze, self.scale = nn.Conv2d(8, 8, 1), nn.Hardsigmoid()
        self.swish, self.last = nn.Hardswish(), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.first(x)))
        x = x * self.scale(self.squeeze(x.mean((2, 3), keepdim=True)))
        x = torch.cat([x[:, ::2], 2 - x[:, 1::2] / 3], 1)
        return self.last(self.swish(F.pad(x, (1, 0, 0, 1))).mean((2, 3)))


def excited() -> nn.Module:
    """The same with shared gates."""
    model = maxpool_to_relu(piecewise_to_relu(Excited().eval()))
    shared = share(model, plan(model, SIZE, "40%"), start="uniform").eval()
    for name, parameter in shared.named_parameters():
        if name.endswith(("alpha", "beta")):
            nn.init.normal_(parameter, 0.5, 0.3)
    return shared


class Branches(nn.Module):
    """A sum of more layers than may be added under encryption at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(nn.Conv2d(3, 4, 3) for _ in range(6)), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        first, *others = (layer(x) for layer in self.layers)
        for other in others:
            first = first + other
        return self.last(first.relu().mean((2, 3)))


def networks() -> dict[str, nn.Module]:
    """Networks that have steps of every kind among them."""
    return {
        "shared": shared_resnet(),
        "plain": shuffled_norms(zoo.resnet18(width=4, num_classes=10)),
        "odd": Odd().eval(),
        "curved": curved_resnet(),
        "quadratic": Quadratic().eval(),
        "apart": Apart().eval(),
        "excited": Excited().eval(),
        "excited and shared": excited(),
        "branches": Branches().eval(),
    }


def chi_square(data: NDArray[np.uint8]) -> float:
    """How far bytes are from uniform: 255 on average, with a standard deviation of 22.6."""
    counts = np.bincount(data, minlength=256)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
