"""`fit` from nothing to a trained network: every choice of model, data and hardware."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from deepshare import zoo
from deepshare.data import ImageSet
from deepshare.data import load as load_data
from deepshare.errors import CheckpointError, DataError, RecipeError, UnsupportedModelError
from deepshare.sharing.convert import count_gates, share
from deepshare.sharing.gates import hard_share
from deepshare.sharing.plan import Plan
from deepshare.sharing.planning import plan
from deepshare.training.api import fit
from deepshare.training.build import load
from deepshare.training.evaluate import evaluate
from deepshare.training.hardware import Hardware
from deepshare.training.recipe.files import load_recipe
from tests.training.small_runs import Finished, Notes, Small, StopAfter, StoppedError, same


def test_the_seed_decides_everything(finished: Finished, small: Small, tmp_path: Path) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert same(finished[1], fit(recipe=small(), out=tmp_path / "again"))
    assert torch.equal(torch.get_rng_state(), before)
    assert not same(finished[1], fit(recipe=small(seed=1), out=tmp_path / "other"))


def test_the_result_has_hard_gates_and_is_ready(finished: Finished) -> None:
    assert hard_share(finished[1]) == 1
    assert not finished[1].training


def test_gates_shared_over_patches_too(small: Small, tmp_path: Path) -> None:
    trained = fit(recipe=small(budget__patch=2, budget__gates="5%"), out=tmp_path / "run")
    saved = Plan.load(tmp_path / "run" / "plan.json")
    assert [group.patch for group in saved.groups] == [2, 2, 2, 1]
    assert count_gates(load(tmp_path / "run"), (1, 8, 8)) == saved.gates <= saved.budget
    assert same(trained, load(tmp_path / "run"))


def test_without_a_gelu_phase_gates_are_hard_from_the_start(small: Small, tmp_path: Path) -> None:
    fit(recipe=small(gelu__epochs=0, switch__epochs=0), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["hard_share"] for line in lines] == [1.0, 1.0]


def test_a_dry_run_goes_through_every_phase_and_keeps_nothing(small: Small, tmp_path: Path) -> None:
    told = Notes()
    fit(recipe=small(gelu__epochs=100), out=tmp_path / "run", dry_run=True, reporter=told)
    assert told.phases == [(name, 1, 0) for name in ("teacher", "gelu", "switch", "finetune")]
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_the_user(small: Small, tmp_path: Path) -> None:
    model = zoo.resnet18(10, width=8, depth=10, channels=1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained = fit(model, recipe=small(), out=tmp_path / "run")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(CheckpointError, match="model of your own: give it in Python"):
        load(tmp_path / "run")
    assert same(trained, load(tmp_path / "run", model=model))
    for other, why in (
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), r"given Sequential \(no site .* in the model\): give the one"),
        (nn.Linear(3, 3), r"given Linear \(Linear does not run on an input of size 1x8x8\): give the one"),
    ):
        with pytest.raises(CheckpointError, match=why):
            load(tmp_path / "run", model=other)


def test_a_shared_model_of_the_user_keeps_its_plan(small: Small, tmp_path: Path) -> None:
    model = zoo.resnet18(10, width=8, depth=10, channels=1)
    planned = plan(model, (1, 8, 8), 300, layer_sharing=False, mapping="contiguous")
    trained = fit(share(model, planned), recipe=small(), out=tmp_path / "run")
    saved = Plan.load(tmp_path / "run" / "plan.json")
    assert [(group.prototypes, [site.name for site in group.sites]) for group in saved.groups] == [
        (group.prototypes, [site.name for site in group.sites]) for group in planned.groups
    ]
    assert (saved.gates, saved.mapping, saved.affine) == (planned.gates, "contiguous", True)
    assert same(trained, load(tmp_path / "run", model=model))
    assert same(trained, load(tmp_path / "run", model=share(model, planned)))


def test_progress_is_shown_unless_told_not_to(small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(recipe=small(), out=tmp_path / "run", dry_run=True)
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.err.splitlines()] == ["teacher", "gelu", "switch", "finetune"]
    assert shown.out == ""
    fit(recipe=small(), out=tmp_path / "run", dry_run=True, progress=False)
    fit(recipe=small(), out=tmp_path / "run", dry_run=True, reporter=Notes())
    assert capsys.readouterr().err == ""


def test_a_trained_model_in_memory_is_the_plain_network_as_it_is(small: Small, tmp_path: Path) -> None:
    model = zoo.resnet18(10, width=8, depth=10, channels=1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:  # statistics of some training
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    recipe = small(method__initial="plain", distillation__teacher="plain", plain__epochs=3)
    told = Notes()
    fit(model, recipe=recipe, trained=True, out=tmp_path / "run", reporter=told)
    assert [name for name, _, _ in told.phases] == ["gelu", "switch", "finetune"]
    assert same(load(tmp_path / "run" / "plain", model=model), model)
    assert same(load(tmp_path / "run", model=model), fit(model, out=tmp_path / "run", resume=True))
    for given, chosen, why in (
        (None, recipe, "give it as model"),
        (share(model, plan(model, (1, 8, 8), 300)), recipe, "this one is shared: give the plain one"),
        (model, load_recipe("cifar100-small-plain"), "give another recipe"),
    ):
        with pytest.raises(RecipeError, match=why):
            fit(given, recipe=chosen, trained=True, out=tmp_path / "other")


def test_resume_needs_the_folder_alone(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    hardware = Hardware("cpu", precision="bf16-mixed")
    whole = fit(recipe=small(), out=tmp_path / "whole", hardware=hardware)
    with pytest.raises(StoppedError):
        fit(recipe=small(), out=folder, hardware=hardware, reporter=StopAfter("switch", 1))
    assert same(fit(out=folder, resume=True), whole)
    with pytest.raises(CheckpointError, match=r"there is no run in .* to resume: begin one"):
        fit(out=tmp_path / "none", resume=True)
    with pytest.raises(RecipeError, match="give a recipe"):
        fit(out=tmp_path / "none")


class Tiny(nn.Module):
    """A network of the user that is none of the zoo's, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.drop, self.fc = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.act(self.conv(x)).mean((2, 3))))


def own_data(count: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 2, 6, 6, generator=generator), labels)


def test_data_and_model_of_the_user(small: Small, tmp_path: Path) -> None:
    recipe = small(data__validation=32, budget__gates=32)
    trained = fit(Tiny(), recipe=recipe, data=own_data(), out=tmp_path / "run")
    assert trained(torch.zeros(1, 2, 6, 6)).shape == (1, 10)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"]["last"] is None


def test_data_by_its_name_is_written_down(small: Small, tmp_path: Path) -> None:
    fit(recipe=small(data__name="cifar10"), data="digits", out=tmp_path)
    assert load_recipe(tmp_path / "recipe.toml").data.name == "digits"


def test_the_weight_of_cross_entropy_is_for_learning_from_a_teacher(small: Small, tmp_path: Path) -> None:
    def losses(weight: float) -> dict[str, float]:
        recipe = small(distillation__ce_weight=weight, teacher__lr=1e-9, gelu__lr=1e-9)
        fit(recipe=recipe, out=tmp_path / f"{weight}")
        folders = (tmp_path / f"{weight}" / "teacher", tmp_path / f"{weight}")
        lines = [json.loads((folder / "metrics.jsonl").read_text().splitlines()[0]) for folder in folders]
        return {line["phase"]: line["loss"] for line in lines}

    whole, half = losses(1.0), losses(0.5)
    assert half["teacher"] == whole["teacher"]
    assert half["gelu"] < whole["gelu"]


def test_a_kill_after_the_last_write_leaves_nothing_behind(small: Small, tmp_path: Path) -> None:
    fit(recipe=small(), out=tmp_path)
    (tmp_path / "state.pt").write_bytes(b"left over")
    fit(recipe=small(), out=tmp_path, resume=True)
    assert not (tmp_path / "state.pt").exists()


def test_dropout_depends_on_the_seed_alone(small: Small, tmp_path: Path) -> None:
    recipe = small(data__validation=32, budget__gates=32)
    torch.manual_seed(5)
    model = Tiny()
    first = fit(model, recipe=recipe, data=own_data(), out=tmp_path / "a")
    torch.manual_seed(6)
    assert same(first, fit(model, recipe=recipe, data=own_data(), out=tmp_path / "b"))


def test_loaders_of_the_user(small: Small, tmp_path: Path) -> None:
    loader = DataLoader(own_data(), batch_size=32, shuffle=True)
    recipe = small(budget__gates=32)
    with pytest.raises(DataError, match="give two"):
        fit(Tiny(), recipe=recipe, data=loader, out=tmp_path / "run")
    trained = fit(Tiny(), recipe=recipe, data=(loader, loader, loader), out=tmp_path / "run")
    assert hard_share(trained) == 1
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"]["last"]["n"] == 96


def test_data_without_images(small: Small, tmp_path: Path) -> None:
    for data, word in (((own_data(0), own_data(4)), "training"), ((own_data(4), own_data(0)), "validation")):
        with pytest.raises(DataError, match=f"there are no {word} images"):
            fit(Tiny(), recipe=small(budget__gates=32), data=data, out=tmp_path / "run")


def test_loaders_are_shuffled_by_the_seed(small: Small, tmp_path: Path) -> None:
    recipe, model = small(budget__gates=32), Tiny()
    runs = []
    for name in ("a", "b"):
        loader = DataLoader(own_data(), batch_size=32, shuffle=True)
        runs.append(fit(model, recipe=recipe, data=(loader, own_data(20)), out=tmp_path / name))
        torch.rand(7)
    assert same(*runs)


def test_mixed_precision_and_determinism(finished: Finished, small: Small, tmp_path: Path) -> None:
    hardware = Hardware("cpu", precision="bf16-mixed", deterministic=True)
    trained = fit(recipe=small(), out=tmp_path / "run", hardware=hardware)
    assert {parameter.dtype for parameter in trained.parameters()} == {torch.float32}
    assert not same(trained, finished[1])
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_compiled(finished: Finished, small: Small, tmp_path: Path) -> None:
    trained = fit(recipe=small(), out=tmp_path / "run", hardware=Hardware("cpu", compile=True))
    images = torch.randn(64, 1, 8, 8)
    assert torch.allclose(trained(images), finished[1](images), atol=0.1)


def test_sharing_starts_so_that_given_weights_keep_their_meaning(small: Small, tmp_path: Path) -> None:
    save_file(zoo.resnet18(10, width=8, depth=10, channels=1).state_dict(), tmp_path / "start.safetensors")
    still = {"gelu__lr": 1e-9, "gelu__end_lr": 1e-9, "switch__lr": 1e-9, "finetune__lr": 1e-9, "finetune__end_lr": 1e-9}
    recipe = small(method__start=None, model__weights=str(tmp_path / "start.safetensors"), **still)
    trained = fit(recipe=recipe, out=tmp_path / "run").state_dict()
    assert all(torch.allclose(value, torch.ones(())) for key, value in trained.items() if key.endswith(".alpha"))


def test_a_number_of_classes_that_does_not_fit(small: Small, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 10 classes but the model has 12 outputs"):
        fit(recipe=small(model__classes=12), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_of_another_kind_than_the_network(small: Small, tmp_path: Path) -> None:
    pixels = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 10, 1))
    with pytest.raises(DataError, match="digits has a class for each image but Sequential gives one for each pixel"):
        fit(pixels, recipe=small(), out=tmp_path / "run")
    images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    recipe = small(data__image_size=12, model__classes=4)
    with pytest.raises(DataError, match="scenes has a class for each pixel but Sequential gives one for each image"):
        fit(images, recipe=recipe, data=(scenes(8), scenes(8)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_of_a_size_that_the_network_asserts_against(small: Small, tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[2] == 224, "Input height 8 is not 224"
            return x

    with pytest.raises(DataError, match=r"Fixed does not take images of 1x8x8 \(Input height 8 is not 224\)"):
        fit(Fixed(), recipe=small(), out=tmp_path / "run")


def test_a_model_that_gives_no_logits(small: Small, tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(UnsupportedModelError, match="Pair returns a tuple"):
        fit(Pair(), recipe=small(), out=tmp_path / "run")


def test_resuming_a_finished_run_changes_nothing(finished: Finished, small: Small) -> None:
    before = {file: file.read_bytes() for file in finished[0].rglob("*") if file.is_file()}
    assert same(finished[1], fit(recipe=small(), out=finished[0], resume=True))
    assert before == {file: file.read_bytes() for file in finished[0].rglob("*") if file.is_file()}


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(small: Small, tmp_path: Path) -> None:
    recipe = small(switch__lr=1e30, switch__schedule="none")
    with pytest.raises(
        RecipeError, match=r"the loss is (nan|inf) in epoch 1 of switch.*lower switch\.lr and --teacher RUN/teacher$"
    ):
        fit(recipe=recipe, out=tmp_path / "run")
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert (state["phase"], state["epochs"], state["over"], state["lines"]) == ("gelu", 2, True, 2)
    assert all(value.isfinite().all() for value in state["model"].values())
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_the_validation_images_are_not_trained_on() -> None:
    splits = load_data("digits", validation=64, subset=128)
    train, held = splits.train.images, splits.validation.images
    assert isinstance(train, Tensor)
    assert isinstance(held, Tensor)
    distinct = {image.numpy().tobytes() for image in train} & {image.numpy().tobytes() for image in held}
    assert not distinct


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.act, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.features(x)))


def scenes(count: int) -> ImageSet:
    """The class of a pixel is its brightness; the first row is to be ignored."""
    generator = torch.Generator().manual_seed(count)
    masks = torch.randint(0, 4, (count, 3, 3), generator=generator).repeat_interleave(4, 1).repeat_interleave(4, 2)
    images = (80 * masks)[:, None].expand(-1, 3, -1, -1).to(torch.uint8)
    masks[:, 0] = 255
    grey = (0.5, 0.5, 0.5)
    return ImageSet("scenes", images.contiguous(), masks.to(torch.uint8), tuple("abcd"), grey, grey, ignore=255)


def test_segmentation_has_no_teacher_and_is_judged_by_miou(small: Small, tmp_path: Path) -> None:
    told = Notes()
    phases = {f"{name}__epochs": 4 for name in ("gelu", "switch", "finetune")}
    recipe = small(
        **phases, model__classes=4, distillation__weight=0, data__image_size=12, data__augmentation__crop_padding=0
    )
    data = (scenes(256), scenes(16), scenes(16))
    trained = fit(Segmenter(), recipe=recipe, data=data, out=tmp_path / "run", reporter=told)
    assert [name for name, _, _ in told.phases] == ["gelu", "switch", "finetune"]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    result = evaluate(trained, data[2], image_size=12)
    assert result.miou is not None
    assert 0.2 < result.miou < 1  # chance is 1 in 7
    assert 0.2 < last["val_miou"] < 1
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"]["last"]["miou"] == result.miou
