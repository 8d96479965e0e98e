"""Start values of alpha and beta that bring shared gates nearest to the ReLUs of a trained network.

For every channel c they minimise the squares of ReLU(x[c]) - x[c] (alpha[c] gate + beta[c]) over the neurons of some
images. x and the gates are those of the network with all its ReLUs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.sharing.gates import GateCell, SharedReLU, shared_relus

SAMPLES = 1024  # images
BATCH = 32
LEAST = 1e-4  # a gate that varies less is as good as constant, and beta alone is fitted


def is_untrained(model: nn.Module) -> bool:
    """Return True if alpha is 1 and beta is 0 at all sites."""
    return all(bool((site.alpha == 1).all() and (site.beta == 0).all()) for site in shared_relus(model))


@torch.no_grad()
def fit(model: nn.Module, images: Tensor) -> None:
    """Fit alpha and beta of every site to its current gates; all other weights must be those of the plain network."""
    sums: dict[SharedReLU, Tensor] = {}
    gates: dict[GateCell, Tensor] = {}

    def watch(site: SharedReLU, inputs: tuple[Tensor], _: Tensor) -> Tensor:
        (x,) = inputs
        if site.position == 0:
            gates[site.cell] = site.gates_of(x)
        gate = gates[site.cell].index_select(1, site.pi)
        sums[site] = sums.get(site, 0) + moments(x, gate.reshape(x.shape))  # (N, C) follows a 1x1 map
        return F.relu(x)

    handles = [site.register_forward_hook(watch) for site in shared_relus(model)]
    training = model.training
    model.eval()
    for batch in images.split(BATCH):
        model(batch)
    model.train(training)
    for handle in handles:
        handle.remove()
    for site, found in sums.items():
        alpha, beta = solve(found)
        site.alpha.copy_(alpha)
        site.beta.copy_(beta)


def moments(x: Tensor, gate: Tensor) -> Tensor:
    """Sums per channel of w, w g, w g^2, w r and w g r, with w = x^2, the gate g and the gate r of ReLU."""
    g, r = gate.double(), (x > 0).double()
    w = x.double().square()
    rest = [d for d in range(x.dim()) if d != 1]
    return torch.stack([value.sum(rest) for value in (w, w * g, w * g * g, w * r, w * g * r)])


def solve(found: Tensor) -> tuple[Tensor, Tensor]:
    """Solve the least squares for alpha and beta."""
    w, wg, wgg, wr, wgr = found
    varies = w * wgg - wg.square()
    known = varies > LEAST * w.square()
    alpha = torch.where(known, (w * wgr - wg * wr) / varies.where(known, torch.ones_like(varies)), 0.0)
    beta = torch.where(w > 0, (wr - alpha * wg) / w.where(w > 0, torch.ones_like(w)), 0.0)
    return alpha, beta
