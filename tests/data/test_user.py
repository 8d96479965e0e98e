"""The user's own Dataset or DataLoader."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from deepshare.data import batches, from_dataset
from deepshare.errors import DataError


def places(found: Iterable[tuple[Tensor, Tensor]]) -> list[list[int]]:
    return [labels.tolist() for _, labels in found]


class Noisy(Dataset[tuple[Tensor, int]]):
    """A dataset whose transform draws from torch's global random state, as torchvision's do."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 2, 2), float(index)) + torch.rand(1), index % 4


def test_a_users_dataset_is_shuffled_and_resumed_like_ours() -> None:
    source = from_dataset(Noisy(), 4)
    whole = list(batches(source, 6, seed=1, epoch=1, shuffle=True))
    torch.manual_seed(77)
    state = torch.random.get_rng_state()
    rest = list(batches(source, 6, seed=1, epoch=1, shuffle=True, start=2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len(whole) == 4
    for (images, labels), (others, other_labels) in zip(whole[2:], rest, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)
    later = list(batches(source, 6, seed=1, epoch=2, shuffle=True))
    assert not torch.equal(whole[0][0], later[0][0])


def test_a_users_loader_is_iterated_as_it_is() -> None:
    pairs = TensorDataset(torch.rand(10, 3, 4, 4), torch.arange(10))
    source = from_dataset(DataLoader(pairs, batch_size=4), [f"class {number}" for number in range(10)])
    found = batches(source, 999, start=1)
    assert len(found) == 2
    assert places(found) == [[4, 5, 6, 7], [8, 9]]
    assert source.classes[3] == "class 3"


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (torch.rand(4, 3, 2, 2), torch.tensor([0, 1, 2, 3]), "label 2 is out of range: with 2 classes"),
        (torch.rand(4, 3, 2, 2), torch.tensor([0, 1, -1, 0]), "label -1 is out of range"),
        (torch.rand(4, 3, 2, 2), torch.rand(4), "labels must be whole numbers"),
        (torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), "images must be float and normalised"),
    ],
)
def test_a_users_data_is_checked(images: Tensor, labels: Tensor, complaint: str) -> None:
    for source in (
        from_dataset(TensorDataset(images, labels), 2),
        from_dataset(DataLoader(TensorDataset(images, labels), 4), 2),
    ):
        with pytest.raises(DataError, match=complaint):
            list(batches(source, 4))


def test_a_users_items_must_be_pairs() -> None:
    with pytest.raises(DataError, match="each item must be a pair"):
        list(batches(from_dataset(TensorDataset(torch.rand(4, 3, 2, 2)), 2), 4))
