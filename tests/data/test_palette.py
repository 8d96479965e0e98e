import torch

from deepshare.data.palette import coloured


def test_colours_of_all_classes_differ_and_no_class_is_black() -> None:
    colours = coloured(torch.arange(-1, 150)[None])
    assert colours.shape == (3, 1, 151) and colours.dtype == torch.uint8
    assert len(colours.flatten(1).T.unique(dim=0)) == 151
    assert colours[:, 0, 0].tolist() == [0, 0, 0]


def test_colours_depend_on_the_class_alone() -> None:
    classes = torch.randint(-1, 40, (6, 7))
    row = coloured(classes.flatten()[None]).reshape(3, 6, 7)
    assert torch.equal(coloured(classes), row)


def test_the_first_classes_are_far_apart() -> None:
    colours = coloured(torch.arange(-1, 11)[None]).flatten(1).T.double()
    distances = torch.cdist(colours, colours) + 1000 * torch.eye(12)
    assert distances.min() > 60
