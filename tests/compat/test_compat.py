"""share() on real networks of three libraries: bit-identical with the identity plan, or refused with the reason."""

import pytest

pytest.importorskip("torchvision", reason="torchvision is not installed")
pytest.importorskip("timm", reason="timm is not installed")
pytest.importorskip("segmentation_models_pytorch", reason="segmentation-models-pytorch is not installed")

from benchmarks.compat import MODELS, SMALL, Case, Row, check, report

# ReLU calls of one image and the elements they see, counted on the original networks without deepshare: a torch
# function mode that adds up relu, relu_, relu6 and hardtanh.
COUNTS = {
    "torchvision:resnet18": (17, 188_416),
    "torchvision:googlenet": (57, 263_360),
    "torchvision:mobilenet_v2": (35, 498_432),
    "torchvision:squeezenet1_1": (26, 181_672),
    "timm:dla46_c": (45, 347_648),
    "timm:hrnet_w18_small": (75, 94_144),
    "timm:repvgg_a0": (22, 36_608),
    "smp:Unet/resnet18": (27, 442_368),
}


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_small_models_stay_equal(case: Case) -> None:
    row = check(case)
    assert row.result == "equal"
    assert (row.sites, row.relus) == COUNTS[case.name]
    assert row.private == "runs"


def test_a_model_that_cannot_be_converted_is_refused_with_its_reason() -> None:
    row = check(Case("timm:efficientvit_m0", 224))
    assert row.result.startswith("refused: stages.0.blocks.0.mixer.m.attn.proj.0: its ReLU sees a tensor of shape")


def test_the_report_counts_what_is_equal_and_what_is_refused() -> None:
    case = Case("a:b", 32, {"act_layer": "relu"})
    rows = [
        Row(case, 2, 3000, "2 module", seconds=0.25, private="runs"),
        Row(case, refused="why", private="runs, smooth"),
        Row(case, trouble="another output", private="refused: why"),
    ]
    text = report(rows)
    assert "1 of 3 models are equal, 1 refused. 1 run privately on gateshare as they are, 1 more" in text
    assert "| a:b, act_layer=relu | 3x32x32 | 2 | 3,000 | 2 module | equal | runs | 0.2 |" in text
    assert "| refused: why | runs, smooth |" in text


def test_the_list_is_long_and_names_nothing_twice() -> None:
    assert len({case.name for case in MODELS}) == len(MODELS) >= 66


@pytest.mark.slow
def test_58_of_every_60_models_stay_equal_and_none_is_wrong() -> None:
    rows = [check(case) for case in MODELS]
    assert [row for row in rows if row.trouble] == []
    assert 60 * sum(row.result == "equal" for row in rows) >= 58 * len(rows)
    assert sum(row.private.startswith("runs") for row in rows) >= 80
