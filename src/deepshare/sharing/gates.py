"""SharedReLU, the activation whose gates are shared across channels and, through a cell, across layers.

Site l of a group computes for channel c

    y[c] = x[c] (alpha[c] gate(x_leader[pi(c)]) + beta[c])

where only the leader, the first site of the group, has prototypes: its first P channels. A gate is hard, x >= 0 (so
gate(0) = 1), or soft, Phi(sharpness x); the switch turns the channels of each site from soft to hard, the last first.
With patches, all neurons of a square patch share the gate of its mean.
"""

import math
from collections.abc import Iterator
from typing import Literal, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import DeepShareError, UnsupportedModelError
from deepshare.sharing.activation import activate, activate_assigned, assignment, hard_gate, soft_gate

Mapping = Literal["round-robin", "contiguous", "learned"]
Phase = Literal["soft", "mixed", "hard"]

LEAD = 0.03  # of the prototype that a channel starts with; alpha and with it preferences move by much more in training


class GateCell:
    """Carries the gates of one group from its leader to its followers within a forward.

    A plain object that all sites of the group hold: it is no edge of the graph, so models copy, pickle, compile and
    export as before. Copies of a model share a fresh cell, without tensors.
    """

    def __init__(self) -> None:
        self.phases: dict[int, Phase] = {}
        self.phase: Phase = "hard"
        self._gates: Tensor | None = None
        self._next = 0

    def enter(self, position: int, phase: Phase) -> None:
        """Note which gates the site at this position reads, so that the leader publishes what all of them need."""
        self.phases[position] = phase
        distinct = set(self.phases.values())
        self.phase = phase if len(distinct) == 1 else "mixed"

    def put(self, gates: Tensor) -> None:
        """Publish the gates of the leader; a new forward of the group starts."""
        if len(self.phases) > 1:
            self._gates = gates
            self._next = self._next if _recomputing() else 1

    def take(self, position: int, x: Tensor) -> Tensor:
        """The gates for the follower at this position, whose input is x."""
        gates = self._gates
        if gates is None or (position < self._next and not _recomputing()):
            raise UnsupportedModelError(
                f"the site at position {position} of a group ran without its leader: "
                "run the model as a whole, or plan again with layer_sharing=False"
            )
        if gates.shape[2:].numel() == x.shape[2:].numel() == 1:
            gates = gates.reshape(*gates.shape[:2], *x.shape[2:])  # (N, C) follows a 1x1 map, or the other way round
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
            # Activation checkpointing may read the gates once more in the backward; their graph it does not need.
            keep = torch.is_grad_enabled() and not torch.compiler.is_compiling()
            self._gates = gates.detach() if keep else None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_gates": None, "_next": 0}


def _recomputing() -> bool:
    """Whether a backward is running, as when activation checkpointing repeats a part of the forward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class GateModule(nn.Module):
    """A module whose own comparisons are gates; `count_gates` counts them where they happen."""


class Fading(nn.Module):
    """A module at a site that may still have a share of the ReLU that it stands for.

    Attributes:
        own: The share; 0 but for training.
    """

    own = 0.0

    def faded(self, y: Tensor, x: Tensor) -> Tensor:
        """What is between its output y and the ReLU of its input x."""
        return torch.lerp(y, F.relu(x), self.own) if self.own else y


class Around(nn.Module):
    """A module that stands at a site and has the site's activation within it."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation


class SharedReLU(GateModule, Fading):
    """One activation site with shared gates; the drop-in for a ReLU.

    With prototypes = channels and the identity start it equals ReLU, and so does its gradient except at exactly zero,
    where this gate is open.

    Args:
        channels: Channels of the input, C.
        prototypes: Channels of the leader whose gates are computed, P: the first P.
        mapping: How channels find their prototype: "round-robin" is pi(c) = c mod P; with "contiguous" a prototype
            maps to itself and the replicates P..C-1 are cut into P blocks, pi(c) = (c - P) P // (C - P); "learned"
            starts as round-robin, and pi is kept with the weights. See `learn_pi`.
        affine: Whether alpha and beta are learned; otherwise they are 1 and 0 and no parameters.
        cell: The cell of the group; None for a group of this one site.
        position: 0 for the leader, k for the k-th follower.
        sharpness: The factor in the soft gate, the paper's gamma.
        patch: Side of the square patches that share a gate; those at the edge of a map may be smaller.

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
        # Where both kinds travel, the soft gates come first and the hard ones after them.
        index = self.pi + self.shift if gates.shape[1] > self.prototypes else self.pi
        return self.faded(activate(x, gates, index, self.alpha, self.beta), x)

    def _gates(self, x: Tensor) -> Tensor:
        if self.position > 0:
            return self.cell.take(self.position, x)
        gates = self.gates_of(x)
        self.cell.put(gates)
        return gates

    def gates_of(self, x: Tensor) -> Tensor:
        """The gates that a leader computes from its input, for every neuron of the map."""
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
        """Give the hard gate to the last ceil(C progress) channels and the soft gate to the others."""
        self.hard_channels = hard_channels(self.channels, progress)
        hard = torch.arange(self.channels, device=self.pi.device) >= self.channels - self.hard_channels
        self.shift.copy_(self.prototypes * hard)
        mixed = 0 < self.hard_channels < self.channels
        self.cell.enter(self.position, "mixed" if mixed else "hard" if self.hard_channels else "soft")

    def learn_pi(self) -> None:
        """Give every channel but a leader's prototypes a preference for every prototype; it uses the one it prefers."""
        start = F.one_hot(self.pi[self._fixed :], self.prototypes).to(self.alpha) * LEAD
        if start.numel() and self.prototypes > 1:
            self.preference = nn.Parameter(start)

    @torch.no_grad()
    def freeze_pi(self) -> None:
        """Write down in pi what every channel prefers, and forget how much it does."""
        if self.preference is not None:
            self.pi[self._fixed :] = self.preference.argmax(1)
            self.preference = None

    @property
    def moved(self) -> int:
        """Channels that have another prototype than they started with."""
        start = prototype_of(self.channels, self.prototypes, self.mapping).to(self.pi.device)
        now = self.pi if self.preference is None else self._assigned(self.preference).argmax(1)
        return int((now != start).sum())

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
        """What print(model) shows of this site."""
        role = f"prototypes={self.prototypes}" if self.position == 0 else f"follower={self.position}"
        patch = f", patch={self.patch}" if self.patch > 1 else ""
        return f"{self.channels}, {role}, mapping={self.mapping}{patch}"

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise UnsupportedModelError(
            "nn.DataParallel would mix the gates of its replicas: use nn.parallel.DistributedDataParallel"
        )


def spread(gates: Tensor, patch: tuple[int, int], height: int, width: int) -> Tensor:
    """The gates of patches (N, C, ...) for every neuron of a map of this size."""
    if patch == (1, 1):
        return gates
    tall = gates.repeat_interleave(patch[0], 2)[:, :, :height]
    return tall.repeat_interleave(patch[1], 3)[:, :, :, :width]


def prototype_of(channels: int, prototypes: int, mapping: Mapping) -> Tensor:
    """The map pi: for each channel the prototype whose gate it uses."""
    channel = torch.arange(channels)
    if mapping != "contiguous":
        return channel % prototypes
    replicate = (channel - prototypes) * prototypes // max(channels - prototypes, 1)
    return torch.where(channel < prototypes, channel, replicate)


def hard_channels(channels: int, progress: float) -> int:
    """ceil(channels progress), where a progress like 3 / 150 counts as the fraction it was meant to be."""
    if not 0 <= progress <= 1:
        raise DeepShareError(f"progress {progress} of the switch is not between 0 (all soft) and 1 (all hard)")
    return max(0, math.ceil(channels * progress - 1e-9))


def shared_relus(model: nn.Module) -> Iterator[SharedReLU]:
    """All sites with shared gates in a model."""
    return (m for m in model.modules() if isinstance(m, SharedReLU))


def by_site(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules by name, activations by the names of their sites."""
    sites: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        name = sites.get(module, path)
        if isinstance(module, Around):
            sites[module.activation] = name
        else:
            yield name, module


def set_progress(model: nn.Module, progress: float) -> None:
    """Set the switch of all sites: 0 is all soft (the GELU phase), 1 all hard (the default), between some of each."""
    for site in shared_relus(model):
        site.set_progress(progress)


def set_sharpness(model: nn.Module, sharpness: float) -> None:
    """Set the sharpness of the soft gate of all sites."""
    for site in shared_relus(model):
        site.sharpness = sharpness


def learn_pi(model: nn.Module) -> None:
    """Let the channels of sites with a learned pi choose their prototypes; only soft gates can be learned with."""
    for site in _learned(model):
        site.learn_pi()


def freeze_pi(model: nn.Module) -> None:
    """End what `learn_pi` began: pi is what was learned."""
    for site in _learned(model):
        site.freeze_pi()


def moved_share(model: nn.Module) -> float | None:
    """The share of channels that have left the prototype they started with; None where none may."""
    sites = list(_learned(model))
    return sum(site.moved for site in sites) / sum(site.channels for site in sites) if sites else None


def _learned(model: nn.Module) -> Iterator[SharedReLU]:
    return (site for site in shared_relus(model) if site.mapping == "learned")


def hard_share(model: nn.Module) -> float:
    """The share of channels that use the hard gate, over all sites; 1.0 in a model without shared gates."""
    sites = list(shared_relus(model))
    total = sum(site.channels for site in sites)
    return sum(site.hard_channels for site in sites) / total if total else 1.0
