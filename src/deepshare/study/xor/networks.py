"""Many networks with one hidden layer and one gate, trained as one batch.

Each network has two inputs x and the logit

    z = sum_j out[j] u[j] (alpha[j] gate(u[0]) + beta[j]) + offset,    u[j] = weight[j] x + bias[j],

so neuron 0 is the prototype and the others are its replicates. Frozen alpha = 1 and beta = 0 make neuron 0 a ReLU
neuron; frozen alpha = 0 and beta = 1 make a neuron linear. One formula therefore covers all methods. The gradients are
written out because autograd would dominate the time of steps this small.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepshare.sharing.activation import hard_gate, soft_gate

# Parameters of a neuron, in their order in XorNetworks.neurons.
WEIGHT, BIAS, ALPHA, BETA, OUT = slice(0, 2), 2, 3, 4, 5


class Forward(NamedTuple):
    """Values of a forward pass: logits are (points, networks), all others (neurons, points, networks)."""

    inputs: Tensor
    gates: Tensor
    scales: Tensor
    logits: Tensor


class XorNetworks:
    """A batch of networks.

    Args:
        neurons: Parameters of the neurons, (6, neurons, networks): two weights, bias, alpha, beta, out.
        offset: Bias of the logit of each network, (networks,).
        learned: Mask of the shape of `neurons`: 1 where a parameter is learned, 0 where it is frozen.
        phased: XorNetworks whose gates can be soft.
        sharpness: Factor in the soft gate.

    Attributes:
        soft: Number of leading neurons of the phased networks that use the soft gate; all others use the hard one.
    """

    def __init__(
        self, neurons: Tensor, offset: Tensor, learned: Tensor, phased: slice = slice(0), sharpness: float = 1.0
    ) -> None:
        self.neurons, self.offset, self.learned = neurons, offset, learned
        self.phased, self.sharpness = phased, sharpness
        self.soft = 0

    def select(self, networks: slice) -> "XorNetworks":
        """Some of the networks, with hard gates; parameters are shared with this batch."""
        return XorNetworks(self.neurons[..., networks], self.offset[networks], self.learned[..., networks])

    def forward(self, points: Tensor) -> Forward:
        """Compute the logits of points (2, points, networks), or (2, points, 1) for points common to all networks."""
        values = self.neurons.unsqueeze(2)
        inputs = torch.addcmul(torch.addcmul(values[BIAS], values[0], points[0]), values[1], points[1])
        gates = self._gates(inputs)
        scales = torch.addcmul(values[BETA], values[ALPHA], gates)
        logits = (inputs * scales).mul_(values[OUT]).sum(0).add_(self.offset)
        return Forward(inputs, gates, scales, logits)

    def _gates(self, inputs: Tensor) -> Tensor:
        gates = hard_gate(inputs[:1]).to(inputs.dtype)
        if self.soft:
            gates = gates.repeat(len(inputs), 1, 1)
            gates[: self.soft, :, self.phased] = soft_gate(inputs[0, :, self.phased], self.sharpness)
        return gates

    def gradients(self, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the mean binary cross-entropy of each network with respect to its neurons and its offset."""
        inputs, gates, scales, logits = self.forward(points)
        values = self.neurons.unsqueeze(2)
        by_logit = torch.sigmoid(logits).sub_(labels).div_(len(labels))
        by_output = values[OUT] * by_logit
        by_scale = by_output * inputs
        by_input = by_output * scales
        if self.soft:
            by_input[0, :, self.phased] += self._through_gates(inputs, by_scale)
        by_neurons = torch.stack(
            [
                (by_input * points[0]).sum(1),
                (by_input * points[1]).sum(1),
                by_input.sum(1),
                (by_scale * gates).sum(1),
                by_scale.sum(1),
                (inputs * scales).mul_(by_logit).sum(1),
            ]
        )
        return by_neurons, by_logit.sum(0)

    def _through_gates(self, inputs: Tensor, by_scale: Tensor) -> Tensor:
        """Gradient of the prototypes' inputs through their soft gates; Phi' is the density of the normal."""
        alpha = self.neurons[ALPHA, : self.soft, self.phased].unsqueeze(1)
        by_gate = (by_scale[: self.soft, :, self.phased] * alpha).sum(0)
        density = (self.sharpness * inputs[0, :, self.phased]).square_().mul_(-0.5).exp_()
        return by_gate.mul_(density).mul_(self.sharpness / math.sqrt(2 * math.pi))

    def step(self, points: Tensor, labels: Tensor, rate: float) -> None:
        """Take one step of plain SGD on points (2, points, networks) with labels (points, networks)."""
        by_neurons, by_offset = self.gradients(points, labels)
        self.neurons.addcmul_(by_neurons, self.learned, value=-rate)
        self.offset.sub_(by_offset, alpha=rate)
