"""Sample predictions on test images."""

from pathlib import Path

import pytest
import torch

from deepshare.data import load as load_data
from deepshare.study.samples import open_images, predict_samples
from deepshare.training.build import load
from deepshare.training.recipe.files import load_recipe


def test_samples_are_test_images_with_the_networks_own_probabilities(tiny_run: Path) -> None:
    test = load_data("digits").test
    network = load(tiny_run)
    samples = predict_samples(network, open_images(load_recipe(tiny_run / "recipe.toml"), None))
    for sample in (*samples.first, *samples.mistakes):
        raw = test.images[sample.number]
        assert torch.equal(sample.image, raw)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (test.mean, test.std))
        with torch.no_grad():
            likely = network(((raw / 255.0 - mean) / std)[None]).double().softmax(1)[0]
        assert [value for _, value in sample.guesses] == pytest.approx(likely.topk(3).values.tolist(), rel=1e-4)
        assert sample.truth == test.classes[int(test.labels[sample.number])]
        assert sample.right == (test.classes[int(likely.argmax())] == sample.truth)
    assert [sample.number for sample in samples.first] == list(range(12))
    assert not any(sample.right for sample in samples.mistakes)
    sure = [sample.guesses[0][1] for sample in samples.mistakes]
    assert sure == sorted(sure, reverse=True)
