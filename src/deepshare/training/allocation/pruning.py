"""SENet's sensitivities, measured by a pilot: a copy of the plain network that is trained sparse."""

from collections.abc import Sequence

from torch import nn

from deepshare.methods.senet_pruning import Sparse, check_layers, relu_sensitivities
from deepshare.sharing.sites import find_sites
from deepshare.training.allocation.files import measured_once
from deepshare.training.run.folder import RunFolder
from deepshare.training.trainer import Networks


def weights(networks: Networks, base: nn.Module, leaders: Sequence[str]) -> dict[str, float]:
    """Train the pilot, and weight each site by the sparsity of the layers before it.

    Raises:
        BudgetError: No site activates the output of a layer.
    """
    sites = find_sites(base, networks.input_size)
    networks.on_all_ranks(lambda: check_layers(sites))
    networks.begin(RunFolder(networks.out))
    run = RunFolder(networks.out / "pilot")
    pilot = networks.train(run, "plain", networks.start(), Sparse(), ("pilot",), teacher=networks.teacher())
    return measured_once(networks.context.fabric, run.path / "weights.json", lambda: relu_sensitivities(pilot, sites))
