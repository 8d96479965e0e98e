"""SharedReLU, the activation that shares gates across channels and, through a cell, across layers.

A site of a group computes for channel c

    y[c] = x[c] (alpha[c] gate(x_leader[pi(c)]) + beta[c])

Only the leader, the first site of the group, has prototypes: its first P channels. A gate is hard, x >= 0 (so
gate(0) = 1), or soft, Phi(sharpness x). The switch hardens the channels of each site from the last to the first. With
patches, all neurons of a square patch share the gate of its mean.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import DeepShareError, PlanMismatchError, UnsupportedModelError
from deepshare.sharing.activation import activate, activate_assigned, assignment, hard_gate, soft_gate

Mapping = Literal["round-robin", "contiguous", "learned"]
Phase = Literal["soft", "mixed", "hard"]

# Initial preference for a channel's own prototype; in training alpha, and with it the preferences, move much further.
LEAD = 0.03


class GateCell:
    """Carries the gates of one group from its leader to its followers within a forward pass.

    A plain object held by all sites of the group. It is not an edge of the graph, so models copy, pickle, compile and
    export as before. The sites of a copied model share a new cell without tensors.
    """

    def __init__(self) -> None:
        self.phases: dict[int, Phase] = {}
        self.phase: Phase = "hard"
        self._gates: Tensor | None = None
        self._next = 0

    def enter(self, position: int, phase: Phase) -> None:
        """Register the kind of gates that a site reads, so that the leader publishes all kinds needed."""
        self.phases[position] = phase
        distinct = set(self.phases.values())
        self.phase = phase if len(distinct) == 1 else "mixed"

    def put(self, gates: Tensor) -> None:
        """Publish the gates of the leader, which starts a new forward pass of the group."""
        if len(self.phases) > 1:
            self._gates = gates
            self._next = self._next if _recomputing() else 1

    def take(self, position: int, x: Tensor) -> Tensor:
        """Return the gates for the follower at this position with input x."""
        gates = self._gates
        if gates is None or (position < self._next and not _recomputing()):
            raise UnsupportedModelError(
                f"the site at position {position} of a group ran without its leader: "
                "run the model as a whole, or plan again with layer_sharing=False"
            )
        if gates.shape[2:].numel() == x.shape[2:].numel() == 1:
            gates = gates.reshape(*gates.shape[:2], *x.shape[2:])  # (N, C) after a 1x1 map, or vice versa
        if gates.shape[0] != x.shape[0] or gates.shape[2:] != x.shape[2:]:
            raise UnsupportedModelError(
                f"the site at position {position} of a group has input {tuple(x.shape)} but its leader has gates "
                f"{tuple(gates.shape)}: plan again with this input size, or with layer_sharing=False"
            )
        if not _recomputing():
            self._advance(position, gates)
        return gates

    def _advance(self, position: int, gates: Tensor) -> None:
        self._next = position + 1
        if self._next == len(self.phases):
            # Activation checkpointing may read the gates again in the backward pass, but not their graph.
            keep = torch.is_grad_enabled() and not torch.compiler.is_compiling()
            self._gates = gates.detach() if keep else None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_gates": None, "_next": 0}


def _recomputing() -> bool:
    """Return True inside a backward pass, where activation checkpointing recomputes parts of the forward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class GateModule(nn.Module):
    """A module whose own comparisons are gates, which `count_gates` counts."""


class Fading(nn.Module):
    """A module at a site that can blend in the ReLU it replaces.

    Attributes:
        own: Weight of the ReLU; 0 except in training.
        replaces: Class of the ReLU.
    """

    own = 0.0
    replaces: type[nn.ReLU] = nn.ReLU

    def faded(self, y: Tensor, x: Tensor) -> Tensor:
        """Blend its output y with the ReLU of its input x."""
        return torch.lerp(y, F.relu(x), self.own) if self.own else y


class Around(nn.Module):
    """A module that replaces a site and wraps its activation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation


class SharedReLU(GateModule, Fading):
    """Drop-in replacement of a ReLU, with shared gates.

    With prototypes = channels and the identity start it equals ReLU. So does its gradient, except at exactly zero,
    where this gate is open.

    Args:
        channels: Channels of the input, C.
        prototypes: Channels of the leader whose gates are computed, P: the first P.
        mapping: Assignment of channels to prototypes. "round-robin" is pi(c) = c mod P. "contiguous" maps a prototype
            to itself and splits the replicates P..C-1 into P blocks, pi(c) = (c - P) P // (C - P). "learned" starts as
            round-robin and stores pi with the weights; see `learn_pi`.
        affine: Learn alpha and beta; otherwise they are the constants 1 and 0.
        cell: The cell of the group; None for a group of one site.
        position: 0 for the leader, k for the k-th follower.
        sharpness: The factor in the soft gate, the paper's gamma.
        patch: Side of the square patches that share a gate; patches at the edge of a map may be smaller.

    Attributes:
        planned: Height and width of its map in the plan, if it was made by one.

    Example:
        >>> act = SharedReLU(4, prototypes=2)
        >>> act(torch.tensor([[-1.0, 2.0, 3.0, -4.0]]))
        tensor([[-0.,  2.,  0., -4.]], grad_fn=<_ActivateBackward>)
    """

    alpha: Tensor
    beta: Tensor
    pi: Tensor
    shift: Tensor
    preference: nn.Parameter | None
    planned: tuple[int, int] | None = None

    def __init__(
        self,
        channels: int,
        prototypes: int,
        *,
        mapping: Mapping = "round-robin",
        affine: bool = True,
        cell: GateCell | None = None,
        position: int = 0,
        sharpness: float = 1.0,
        patch: int = 1,
    ) -> None:
        super().__init__()
        if not 1 <= prototypes <= channels:
            raise UnsupportedModelError(
                f"{prototypes} prototypes of {channels} channels: give between 1 and {channels}"
            )
        self.channels, self.prototypes, self.mapping = channels, prototypes, mapping
        self.position, self.sharpness, self.patch = position, sharpness, patch
        self.cell = GateCell() if cell is None else cell
        if affine:
            self.alpha, self.beta = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        else:
            self.register_buffer("alpha", torch.ones(channels), persistent=False)
            self.register_buffer("beta", torch.zeros(channels), persistent=False)
        self.register_buffer("pi", prototype_of(channels, prototypes, mapping), persistent=mapping == "learned")
        self.register_buffer("shift", torch.full((channels,), prototypes), persistent=False)
        self.register_parameter("preference", None)
        self.set_progress(1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the gates of the group to x of shape (N, C) or (N, C, H, W)."""
        if x.dim() not in (2, 4) or x.shape[1] != self.channels:
            raise UnsupportedModelError(
                f"a site of {self.channels} channels got an input of shape {tuple(x.shape)}: "
                "give (N, C, H, W) or (N, C), with the batch first"
            )
        gates = self._gates(x)
        if self.preference is not None:
            y = activate_assigned(x, gates, self._assigned(self.preference), self.alpha, self.beta)
            return self.faded(y, x)
        # With both kinds of gates, the soft ones come first.
        index = self.pi + self.shift if gates.shape[1] > self.prototypes else self.pi
        return self.faded(activate(x, gates, index, self.alpha, self.beta), x)

    def _gates(self, x: Tensor) -> Tensor:
        if self.position > 0:
            return self.cell.take(self.position, x)
        gates = self.gates_of(x)
        self.cell.put(gates)
        return gates

    def gates_of(self, x: Tensor) -> Tensor:
        """Compute the gates of a leader from its input, for every neuron of the map."""
        prototypes = x[:, : self.prototypes]
        if self.patch > 1:
            prototypes = F.avg_pool2d(prototypes, self.patch, ceil_mode=True)
        if self.cell.phase == "hard":
            gates = hard_gate(prototypes)
        else:
            gates = soft_gate(prototypes, self.sharpness)
            if self.cell.phase == "mixed":
                gates = torch.cat([gates, hard_gate(prototypes).to(gates.dtype)], 1)
        return spread(gates, (self.patch, self.patch), *x.shape[2:]) if self.patch > 1 else gates

    @torch.no_grad()
    def set_progress(self, progress: float) -> None:
        """Use the hard gate for the last ceil(C progress) channels and the soft gate for the others."""
        self.hard_channels = hard_channels(self.channels, progress)
        hard = torch.arange(self.channels, device=self.pi.device) >= self.channels - self.hard_channels
        self.shift.copy_(self.prototypes * hard)
        mixed = 0 < self.hard_channels < self.channels
        self.cell.enter(self.position, "mixed" if mixed else "hard" if self.hard_channels else "soft")

    def learn_pi(self) -> None:
        """Learn a preference of every channel, except a leader's prototypes, for every prototype; the largest wins."""
        start = F.one_hot(self.pi[self._fixed :], self.prototypes).to(self.alpha) * LEAD
        if start.numel() and self.prototypes > 1:
            self.preference = nn.Parameter(start)

    @torch.no_grad()
    def freeze_pi(self) -> None:
        """Store the preferred prototype of every channel in pi and drop the preferences."""
        if self.preference is not None:
            self.pi[self._fixed :] = self.preference.argmax(1)
            self.preference = None

    @property
    def moved(self) -> int:
        """Number of channels that have left their initial prototype."""
        start = prototype_of(self.channels, self.prototypes, self.mapping).to(self.pi.device)
        now = self.pi if self.preference is None else self._assigned(self.preference).argmax(1)
        return int((now != start).sum())

    def check_map(self, name: str, shape: Sequence[int]) -> None:
        """Check that its map has the size of the plan.

        Raises:
            PlanMismatchError: It has another, so that there would be more or fewer gates than planned.
        """
        found = (*shape, 1, 1)[:2]
        if self.planned is not None and tuple(found) != self.planned:
            planned, now = ("x".join(map(str, size)) for size in (self.planned, found))
            raise PlanMismatchError(
                f"{name} has a map of {now} and one of {planned} in the plan: make a plan for this input size"
            )

    @property
    def plain(self) -> bool:
        """True for a ReLU: all gates are its own, no other site takes them, and there is no alpha and beta."""
        fixed = not isinstance(self.alpha, nn.Parameter) and self.mapping != "learned"
        return fixed and self.prototypes == self.channels and self.patch == 1 and len(self.cell.phases) == 1

    @property
    def _fixed(self) -> int:
        return 0 if self.position else self.prototypes

    def _assigned(self, preference: Tensor) -> Tensor:
        own = torch.eye(self._fixed, self.prototypes, dtype=preference.dtype, device=preference.device)
        return torch.cat([own, assignment(preference)])

    @torch.no_grad()
    def start_uniform(self, generator: torch.Generator | None = None) -> None:
        """Draw alpha and beta uniformly from [-1, 1)."""
        device = "cpu" if generator is None else generator.device
        for value in self.parameters():
            value.copy_(torch.rand(self.channels, generator=generator, device=device) * 2 - 1)

    def extra_repr(self) -> str:
        """Description of this site in print(model)."""
        role = f"prototypes={self.prototypes}" if self.position == 0 else f"follower={self.position}"
        patch = f", patch={self.patch}" if self.patch > 1 else ""
        return f"{self.channels}, {role}, mapping={self.mapping}{patch}"

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise UnsupportedModelError(
            "nn.DataParallel would mix the gates of its replicas: use nn.parallel.DistributedDataParallel"
        )


def spread(gates: Tensor, patch: tuple[int, int], height: int, width: int) -> Tensor:
    """Expand the gates of patches (N, C, ...) to every neuron of a map of this size."""
    if patch == (1, 1):
        return gates
    tall = gates.repeat_interleave(patch[0], 2)[:, :, :height]
    return tall.repeat_interleave(patch[1], 3)[:, :, :, :width]


def prototype_of(channels: int, prototypes: int, mapping: Mapping) -> Tensor:
    """Return the map pi: the prototype of each channel."""
    channel = torch.arange(channels)
    if mapping != "contiguous":
        return channel % prototypes
    replicate = (channel - prototypes) * prototypes // max(channels - prototypes, 1)
    return torch.where(channel < prototypes, channel, replicate)


def hard_channels(channels: int, progress: float) -> int:
    """Return ceil(channels progress), robust to the rounding of fractions such as 3 / 150."""
    if not 0 <= progress <= 1:
        raise DeepShareError(f"progress {progress} of the switch is not between 0 (all soft) and 1 (all hard)")
    return max(0, math.ceil(channels * progress - 1e-9))


def shared_relus(model: nn.Module) -> Iterator[SharedReLU]:
    """Iterate over all sites with shared gates in a model."""
    return (m for m in model.modules() if isinstance(m, SharedReLU))


def fading(model: nn.Module) -> Iterator[tuple[str, Fading]]:
    """Iterate by name over the outermost such module of each site: shared gates, or a square that wraps them."""
    within = {
        module.activation for module in model.modules() if isinstance(module, Fading) and isinstance(module, Around)
    }
    named = model.named_modules()
    return ((path, module) for path, module in named if isinstance(module, Fading) and module not in within)


def by_site(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over all modules by name, with activations under the names of their sites."""
    sites: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        name = sites.get(module, path)
        if isinstance(module, Around):
            sites[module.activation] = name
        else:
            yield name, module


def set_progress(model: nn.Module, progress: float) -> None:
    """Set the progress of the switch at all sites, from 0 (all soft, the GELU phase) to 1 (all hard, the default)."""
    for site in shared_relus(model):
        site.set_progress(progress)


def set_sharpness(model: nn.Module, sharpness: float) -> None:
    """Set the sharpness of the soft gate of all sites."""
    for site in shared_relus(model):
        site.sharpness = sharpness


def learn_pi(model: nn.Module) -> None:
    """Start learning pi at sites whose mapping is learned; needs soft gates."""
    for site in _learned(model):
        site.learn_pi()


def freeze_pi(model: nn.Module) -> None:
    """Stop learning pi and fix it to the learned assignment."""
    for site in _learned(model):
        site.freeze_pi()


def moved_share(model: nn.Module) -> float | None:
    """Fraction of channels that have left their initial prototype; None without a learned pi."""
    sites = list(_learned(model))
    return sum(site.moved for site in sites) / sum(site.channels for site in sites) if sites else None


def _learned(model: nn.Module) -> Iterator[SharedReLU]:
    return (site for site in shared_relus(model) if site.mapping == "learned")


def hard_share(model: nn.Module) -> float:
    """Fraction of channels that use the hard gate, over all sites; 1.0 in a model without shared gates."""
    sites = list(shared_relus(model))
    total = sum(site.channels for site in sites)
    return sum(site.hard_channels for site in sites) / total if total else 1.0
