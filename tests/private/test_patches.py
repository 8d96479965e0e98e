"""Gates over patches: cells by hand, and both engines on networks whose patches do not fit their maps."""

import pytest
import torch
from torch import Tensor, nn

from deepshare import count_gates, plan, share, zoo
from deepshare.errors import UnsupportedModelError
from deepshare.methods.patches import PatchReLU, patched
from deepshare.private import infer, outline, plain
from deepshare.private.cells import cells_of_patches, sums
from deepshare.private.cost import predict
from deepshare.private.engine import find_engine
from deepshare.private.translate import translate
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.sites import find_sites

SIZE = (3, 9, 9)


def shared() -> nn.Module:
    model = zoo.resnet18(width=4, classes=5)
    return share(model, plan(model, SIZE, "5%", patch=2), start="uniform").eval()


def spatial() -> nn.Module:
    """Channels with patches of one neuron, of uneven ones, of the whole map, and without a gate."""
    base = zoo.resnet18(width=4, classes=5)
    model = replace_sites(base, find_sites(base, SIZE), PatchReLU).eval()
    for site in patched(model):
        kinds = torch.tensor([[1, 1], [2, 1], [site.site.height, site.site.width], [0, 0]])
        site.set_patches(kinds[torch.arange(site.site.channels) % 4])
    return model


@pytest.fixture(params=[shared, spatial])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(3)
    made: nn.Module = request.param()
    return made


def test_cells_by_hand() -> None:
    cells = cells_of_patches(torch.tensor([[2, 2], [3, 1]]), 3, 3)
    assert cells.view(2, 3, 3).tolist() == [
        [[0, 0, 1], [0, 0, 1], [2, 2, 3]],
        [[4, 5, 6], [4, 5, 6], [4, 5, 6]],
    ]
    numbers = torch.arange(18).view(1, 2, 3, 3)
    assert sums(numbers, cells).tolist() == [[0 + 1 + 3 + 4, 2 + 5, 6 + 7, 8, 36, 39, 42]]


def test_the_program_is_the_network_and_counts_its_gates(model: nn.Module) -> None:
    program, images = translate(model, SIZE), torch.randn(3, *SIZE)
    torch.testing.assert_close(plain.evaluate(program, images).float(), model(images), rtol=1e-4, atol=1e-4)
    assert program.comparisons == count_gates(model, SIZE)
    again = outline.parse(outline.dump(program))
    assert again.comparisons == program.comparisons and outline.digest(again) == outline.digest(program)


@pytest.mark.parametrize("engine", ["crypten", "gateshare"])
def test_privately(model: nn.Module, engine: str) -> None:
    images = torch.randn(2, *SIZE)
    result = infer(model, images, engine=engine)
    expected: Tensor = model(images).detach()
    assert float((result.logits - expected).abs().max()) < 0.05
    predicted = predict(model, SIZE, engine, images=2)
    for measured, planned in ((result.cost.online, predicted.online), (result.cost.offline, predicted.offline)):
        assert (measured.server_bytes, measured.client_bytes) == (planned.server_bytes, planned.client_bytes)
        assert (measured.rounds, measured.comparisons) == (planned.rounds, planned.comparisons)
    assert result.cost.online.comparisons == 2 * count_gates(model, SIZE)


def test_spu_says_that_it_cannot(model: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match="spu-semi2k has no gates over patches: take engine gateshare"):
        find_engine("spu-semi2k").check(translate(model, SIZE), {})
