"""Sites are found by running, however a network calls its ReLUs."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare import find_sites, zoo
from deepshare.errors import UnsupportedModelError
from deepshare.sharing.sites import Sites


class Mixed(nn.Module):
    """One module of its own, one used twice, functions of every spelling, and what else compares."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.own = nn.ReLU()
        self.twice = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.bounded = nn.ReLU6()
        self.head = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.own(self.conv(x))
        x = self.twice(x - 1)
        x = self.pool(self.twice(x - 1))
        x = torch.relu(F.relu(x - 1) - 1)
        x = (x - 1).relu().mean((2, 3))
        return F.relu_(self.bounded(self.head(x)))


class Larger(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.max(x, x + 1)


def test_every_kind_of_call_in_order() -> None:
    sites = find_sites(Mixed(), (3, 8, 8))
    assert [(site.name, site.shape, site.kind) for site in sites] == [
        ("own", (4, 8, 8), "module"),
        ("twice_1", (4, 8, 8), "reused"),
        ("twice_2", (4, 8, 8), "reused"),
        ("relu_1", (4, 4, 4), "function"),
        ("relu_2", (4, 4, 4), "function"),
        ("relu_3", (4, 4, 4), "function"),
        ("relu_4", (6, 1, 1), "function"),
    ]
    assert sites.neurons == 3 * 4 * 64 + 3 * 4 * 16 + 6


def test_what_else_compares() -> None:
    others = find_sites(Mixed(), (3, 8, 8)).others
    assert [(other.name, other.what, other.comparisons) for other in others] == [
        ("pool", "max_pool2d", 3 * 4 * 16),
        ("bounded", "relu6", 2 * 6),
    ]


@pytest.mark.parametrize(
    ("layer", "what", "comparisons"),
    [
        (nn.Hardswish(), "hardswish", 2 * 3 * 64),
        (nn.LeakyReLU(), "leaky_relu", 3 * 64),
        (nn.AdaptiveMaxPool2d(1), "adaptive_max_pool2d", 3 * 63),
        (nn.AdaptiveMaxPool2d((3, 2)), "adaptive_max_pool2d", 3 * (8 * 2 * 3 + 3 * 2 * 3)),
        (nn.MaxPool2d((3, 2), 2), "max_pool2d", 3 * (8 * 4 + 2 * 3 * 4)),
        (nn.Hardtanh(0.0, 3.0), "hardtanh", 2 * 3 * 64),
        (Larger(), "maximum", 3 * 64),
    ],
)
def test_comparisons_of_other_layers(layer: nn.Module, what: str, comparisons: int) -> None:
    others = find_sites(nn.Sequential(layer), (3, 8, 8)).others
    assert [(other.what, other.comparisons) for other in others] == [(what, comparisons)]


def test_the_model_is_not_touched() -> None:
    model = Mixed().train()
    before = {name: (value.clone(), value.device) for name, value in model.state_dict().items()}
    find_sites(model, (3, 8, 8))
    assert model.training
    assert not model._forward_hooks
    assert not model.own._forward_pre_hooks
    assert all(torch.equal(value, before[name][0]) for name, value in model.state_dict().items())


def test_a_model_in_half_precision_is_found_too() -> None:
    assert len(find_sites(Mixed().bfloat16(), (3, 8, 8))) == 7


def test_residual_blocks_are_those_that_add() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.body(x) + x)

    sites = find_sites(nn.Sequential(nn.ReLU(), Block(), Block()), (3, 4, 4))
    assert [(site.name, site.block) for site in sites] == [
        ("0", ""),
        ("1.body.1", "1"),
        ("1.act", "1"),
        ("2.body.1", "2"),
        ("2.act", "2"),
    ]


def layers_of(model: nn.Module, *size: int) -> dict[str, tuple[str, ...]]:
    return {place.site.name: place.layers for place in find_sites(model, size).places}


def test_the_layers_before_the_sites_of_a_resnet() -> None:
    with torch.device("meta"):
        found = layers_of(zoo.build("resnet18"), 3, 32, 32)
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    expected: dict[str, tuple[str, ...]]
    expected = {f"{block}.act{n}": (f"{block}.conv{n}",) for block in blocks for n in (1, 2)}
    # What the shortcut adds: the stem, which is not activated, and where the shape changes a convolution of its own.
    expected["layer1.0.act2"] = ("layer1.0.conv2", "conv1")
    expected |= {f"layer{stage}.0.act2": (f"layer{stage}.0.conv2", f"layer{stage}.0.shortcut.0") for stage in (2, 3, 4)}
    assert found == expected


def test_the_layers_before_the_sites_of_a_network_that_activates_first() -> None:
    with torch.device("meta"):
        found = layers_of(zoo.build("wrn22-8"), 3, 32, 32)
    blocks = [f"block{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)]
    assert [found[f"{block}.act2"] for block in blocks] == [(f"{block}.conv1",) for block in blocks]
    # The sum goes on unactivated from block to block, until a stage begins with another.
    summed = {
        stage: [*(f"block{stage}.{block}.conv2" for block in (2, 1, 0)), f"block{stage}.0.shortcut"]
        for stage in (1, 2, 3)
    }
    assert found["block1.0.act1"] == ("conv1",)
    for stage in (1, 2, 3):
        assert found[f"block{stage}.1.act1"] == tuple(summed[stage][2:])
        assert found[f"block{stage}.2.act1"] == tuple(summed[stage][1:])
    assert found["block2.0.act1"] == tuple(summed[1])
    assert found["block3.0.act1"] == tuple(summed[2])


class Fed(nn.Module):
    """Sites behind sums in place, other activations, concatenation, a linear layer, and behind activations alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm, self.pool, self.squeeze = nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1)
        self.fc, self.act = nn.Linear(8, 5), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        F.relu(x, inplace=True)  # 1: the convolution
        y = self.norm(self.two(x))
        y *= torch.sigmoid(self.squeeze(y))  # which only weighs what is there
        y += x
        y = self.pool(F.relu(y))  # 2: the second convolution, since x is activated in place
        z = F.relu(y * 2)  # 3: nothing but what is activated
        x = torch.cat([z, self.two(z)], 1).mean((2, 3))
        return self.act(self.fc(x) + F.relu(x)[:, :5])  # 4: half of it is activated; 5: the linear layer


def test_only_what_is_not_activated_in_between_feeds_a_site() -> None:
    found = layers_of(Fed(), 3, 4, 4)
    assert list(found.values()) == [("one",), ("two",), (), ("two",), ("fc",)]


def test_weights_that_are_made_from_others_are_nobodys() -> None:
    made = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    assert layers_of(nn.Sequential(nn.Linear(2, 2), made, nn.ReLU()), 2) == {"2": ()}


def test_a_new_name_never_hides_an_attribute() -> None:
    class Net(nn.Module):
        relu_1 = "taken"

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x)

    assert [site.name for site in find_sites(Net(), (3, 4, 4))] == ["relu_2"]


@pytest.mark.parametrize("size", [(), (3, 32), (1, 3, 32, 32), (3, 0, 32), (3, -1, 4), (3.0, 8, 8)])
def test_a_wrong_input_size_is_one_line(size: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        find_sites(Mixed(), size)
    assert "\n" not in str(caught.value)


def test_channels_that_do_not_fit_name_the_size() -> None:
    with pytest.raises(UnsupportedModelError, match="Mixed does not run on an input of size 1x8x8"):
        find_sites(Mixed(), (1, 8, 8))


def test_a_plain_tensor_of_a_model_is_no_obstacle() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.zeros(3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x - self.mean)

    assert len(find_sites(Shifted(), (3, 4, 4))) == 1


@pytest.mark.parametrize(
    ("spoil", "cure"),
    [
        (torch.jit.script, "give the original module"),
        (torch.compile, "give the original module"),
        (lambda model: model.append(nn.LazyConv2d(4, 1)), "run it once"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_copied_is_told_its_own_cure(spoil: Callable[[nn.Sequential], nn.Module], cure: str) -> None:
    with pytest.raises(UnsupportedModelError, match=cure):
        find_sites(spoil(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())), (3, 8, 8))


def test_a_forward_that_depends_on_values_is_told_so() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) if x.mean() > 0 else x

    with pytest.raises(UnsupportedModelError, match="not on values"):
        find_sites(Branch(), (3, 4, 4))


def test_hooks_of_a_relu_are_not_lost_silently() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    model[1].register_forward_hook(lambda module, args, output: output * 2)
    with pytest.raises(UnsupportedModelError, match="1: it has forward hooks"):
        find_sites(model, (3, 8, 8))


def test_relu_on_tokens_is_refused_by_name() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(x.flatten(2).transpose(1, 2))

    with pytest.raises(UnsupportedModelError, match=r"act: its ReLU sees an input of shape \(N, 16, 3\)"):
        find_sites(Tokens(), (3, 4, 4))


def test_it_prints_as_a_table_and_goes_to_plain_data() -> None:
    sites: Sites = find_sites(Mixed(), (3, 8, 8))
    lines = str(sites).splitlines()
    assert lines[0].split() == ["site", "channels", "map", "ReLUs", "reached", "as"]
    assert lines[2].split() == ["own", "4", "8x8", "256", "module"]
    assert lines[-2] == "966 ReLUs at 7 sites, input 3x8x8"
    assert lines[-1] == "also compares: max_pool2d (192), relu6 (12)"
    assert sites.to_dict()["sites"][0]["neurons"] == 256
