"""The bundled data set: 1,797 handwritten digits of 8x8 pixels, for quick experiments."""

from importlib.resources import files

import numpy as np
import torch

from deepshare.data.images import ImageSet, cut

TEST_IMAGES = 300


def load_digits() -> tuple[ImageSet, ImageSet]:
    """Return the training and test images; the test images do not depend on the seed."""
    with files("deepshare.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    # The file has 0 to 16; scale to the full range, like any other 8-bit image.
    images = (images.int() * 255 // 16).to(torch.uint8).unsqueeze(1)
    classes = tuple("0123456789")
    return cut(ImageSet("digits", images, labels.long(), classes, mean=(0.3050,), std=(0.3761,)), TEST_IMAGES, seed=0)
