"""Gates shared between layers survive copies, pickles, compilers, exporters, parallel and checkpointed training."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from deepshare.errors import UnsupportedModelError
from deepshare.sharing.gates import GateCell, SharedReLU, set_progress

PROGRESSES = pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])


class Net(nn.Module):
    """Two groups, of three sites and of one, in three blocks that may be checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = GateCell()
        acts = [SharedReLU(6, 4, cell=self.cell, position=k) for k in range(3)]
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), acts[0])
        self.second = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), acts[1])
        self.third = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), acts[2])
        self.head = nn.Sequential(nn.Conv2d(6, 5, 3, stride=2), SharedReLU(5, 2), nn.Flatten(), nn.Linear(45, 3))
        self.checkpointed = False
        for act in self.modules():
            if isinstance(act, SharedReLU):
                act.start_uniform(torch.Generator().manual_seed(act.position))

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.first, self.second, self.third):
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits: Tensor = self.head(x)
        return logits


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def train_step(model: nn.Module, images: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(images).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same_training(model: nn.Module, reference: nn.Module, images: Tensor) -> None:
    for ours, theirs in zip(train_step(model, images), train_step(reference, images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@PROGRESSES
def test_copies_after_a_training_step_have_their_own_cells(
    net: Net, images: Tensor, progress: float, copier: Callable[[Net], Net]
) -> None:
    set_progress(net, progress)
    train_step(net, images)
    twin = copier(net)
    cells = [{id(m.cell) for m in model.modules() if isinstance(m, SharedReLU)} for model in (net, twin)]
    assert [len(c) for c in cells] == [2, 2] and not cells[0] & cells[1]
    assert torch.equal(twin(images), net(images))
    assert_same_training(twin, net, images)
    with pytest.raises(UnsupportedModelError, match="without its leader"):
        copier(net).second(torch.zeros(4, 6, 8, 8))


def test_state_goes_to_a_fresh_model(net: Net, images: Tensor) -> None:
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    fresh = Net()
    with torch.no_grad():
        for p in fresh.parameters():
            p.zero_()
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(fresh(images), net(images))


def test_follower_without_leader(net: Net, images: Tensor) -> None:
    inner = torch.zeros(4, 6, 8, 8)
    for block in (net.second, net.third):
        with pytest.raises(UnsupportedModelError, match="without its leader: run the model as a whole"):
            block(inner)
    with torch.no_grad():
        net(images)
        with pytest.raises(UnsupportedModelError, match="position 1"):
            net.second(inner)
    net(images)
    with pytest.raises(UnsupportedModelError, match="position 2"):
        net.third(inner)
    net.first(images)
    net.third(inner)  # a follower may be left out
    with pytest.raises(UnsupportedModelError, match="position 1"):
        net.second(inner)


@pytest.mark.parametrize("shape", [(2, 6, 8, 8), (4, 6, 4, 4), (4, 6)])
def test_gates_of_another_shape(net: Net, images: Tensor, shape: tuple[int, ...]) -> None:
    net.first(images)
    with pytest.raises(UnsupportedModelError, match=r"leader has gates \(4, 4, 8, 8\): plan again"):
        net.second[1](torch.zeros(shape))


@PROGRESSES
def test_nothing_stays_behind(net: Net, images: Tensor, progress: float) -> None:
    set_progress(net, progress)
    with torch.no_grad():
        net(images)
        assert net.cell._gates is None
    net(images)
    assert net.cell._gates is not None
    assert net.cell._gates.grad_fn is None  # or an unused forward would keep all its activations alive


@PROGRESSES
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_whole(net: Net, images: Tensor, progress: float, backend: str) -> None:
    torch._dynamo.reset()
    set_progress(net, progress)
    compiled = copy.deepcopy(net)
    compiled.compile(fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), net(images))
    assert_same_training(compiled, net, images)
    assert compiled.cell._gates is None


def test_training_compiles_three_times(net: Net, images: Tensor) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    net.compile(fullgraph=True, backend=counter)
    for progress in (0, 0, 0.1, 0.2, 0.7, 0.9, 1, 1):
        set_progress(net, progress)
        train_step(net, images)
    assert counter.frame_count == 3


def test_exports_with_one_comparison_per_group(net: Net, images: Tensor) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(net.eval(), (images,), dynamic_shapes=({0: batch},))
    assert net.cell._gates is None
    compared = [n for n in program.graph.nodes if n.target in {torch.ops.aten.ge.Scalar, torch.ops.aten.relu.default}]
    assert [tuple(n.meta["val"].shape[1:]) for n in compared] == [(4, 8, 8), (2, 3, 3)]
    assert torch.equal(program.module()(images[:3]), net(images[:3]))
    assert torch.equal(net(images), copy.deepcopy(net)(images))


@PROGRESSES
def test_checkpointed_blocks(net: Net, images: Tensor, progress: float) -> None:
    set_progress(net, progress)
    twin = copy.deepcopy(net)
    twin.checkpointed = True
    for _ in range(2):
        assert_same_training(twin, net, images)
    with pytest.raises(UnsupportedModelError, match="without its leader"):
        twin.second(torch.zeros(4, 6, 8, 8))


@PROGRESSES
def test_checkpointed_group(net: Net, images: Tensor, progress: float) -> None:
    set_progress(net, progress)
    twin = copy.deepcopy(net)
    body = nn.Sequential(twin.first, twin.second, twin.third)
    for reentrant in (True, False):
        leaf = images.clone().requires_grad_()
        twin.zero_grad()
        twin.head(checkpoint(body, leaf, use_reentrant=reentrant)).square().sum().backward()
        for ours, theirs in zip(twin.parameters(), train_step(net, images), strict=True):
            torch.testing.assert_close(ours.grad, theirs)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@PROGRESSES
def test_distributed_data_parallel(net: Net, images: Tensor, progress: float) -> None:
    set_progress(net, progress)
    parallel = DistributedDataParallel(copy.deepcopy(net))
    for _ in range(2):
        assert_same_training(parallel, net, images)


def test_data_parallel_is_refused(net: Net) -> None:
    with pytest.raises(UnsupportedModelError, match="DistributedDataParallel"):
        net.first[1]._replicate_for_data_parallel()


def test_moves_to_another_device_and_dtype(net: Net, images: Tensor) -> None:
    set_progress(net, 0.5)
    meta = copy.deepcopy(net).to("meta")
    assert meta(images.to("meta")).shape == (4, 3)
    torch.testing.assert_close(copy.deepcopy(net).double()(images.double()).float(), net(images))
