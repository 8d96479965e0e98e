"""The figure of affine parameters."""

import json
from pathlib import Path

import torch

from deepshare.study.affine.figure import draw, save
from deepshare.study.affine.parameters import NetworkAffine, linear_like
from deepshare.study.drawing import BLUE, ORANGE


def test_a_panel_for_each_site_with_prototypes_and_replicates_apart(network: NetworkAffine) -> None:
    figure = draw([network])
    panels = [axes for axes in figure.subfigs[0].axes if axes.axison]
    assert [axes.get_title() for axes in panels] == [site.site for site in network.sites]
    for axes, site in zip(panels, network.sites, strict=True):
        replicates, prototypes = axes.lines[-2:]
        assert (replicates.get_color(), prototypes.get_color()) == (BLUE, ORANGE)
        drawn = torch.as_tensor(prototypes.get_xydata())
        expected = torch.stack([site.beta, site.alpha], 1)
        assert torch.equal(drawn.float(), expected[: site.prototypes])
        assert torch.equal(torch.as_tensor(replicates.get_xydata()).float(), expected[site.prototypes :])


def test_the_shaded_area_is_where_channels_are_linear_like(network: NetworkAffine) -> None:
    axes = draw([network]).subfigs[0].axes[0]
    area = axes.collections[0].get_paths()[0]
    points = (torch.rand(2_000, 2) * 2 - 1).double()
    inside = torch.as_tensor(area.contains_points(points.numpy()))
    assert torch.equal(inside, linear_like(points[:, 1], points[:, 0]))


def test_two_networks_stand_side_by_side(network: NetworkAffine, tmp_path: Path) -> None:
    figure = draw([network, network])
    assert len(figure.subfigs) == 2
    save([network, network], tmp_path, "deepshare study affine one two")
    assert {path.name for path in tmp_path.iterdir()} == {"affine.json", "affine.svg", "affine.png"}
    record = json.loads((tmp_path / "affine.json").read_text())
    assert [run["gates"] for run in record["runs"]] == [network.gates] * 2
    assert "0.1" in record["linear_like"]
