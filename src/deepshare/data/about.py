"""Input format of a trained network: size, normalisation and class names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import ImageOps
from pydantic import BaseModel, ConfigDict, PositiveFloat, model_validator
from torch import Tensor

from deepshare.data.images import ImageSet
from deepshare.data.pictures import opened
from deepshare.errors import DataError


class About(BaseModel):
    """Input format of a trained network, for use without its data set.

    Attributes:
        size: (C, H, W), with one channel or three.
        mean: Mean of each channel, for values from 0 to 1.
        std: Standard deviation of each channel, on the same scale.
        classes: Class names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[PositiveFloat, ...]
    classes: tuple[str, ...]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.size[0] == len(self.mean) == len(self.std) or self.size[0] not in (1, 3) or min(self.size) < 1:
            raise ValueError("size, mean and std must be of one or of three channels")
        return self

    @classmethod
    def of(cls, images: ImageSet, size: Sequence[int]) -> "About":
        """Describe the images of a data set, brought to a size."""
        channels, height, width = size
        return cls(size=(channels, height, width), mean=images.mean, std=images.std, classes=images.classes)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise uint8 images of shape (N, C, H, W)."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (images / 255.0 - mean) / std

    def read(self, paths: Sequence[Path], *, fit: bool = False) -> Tensor:
        """Read image files as input for the network.

        Args:
            paths: Image files.
            fit: Resize images of another size to cover the input and crop them at the centre.

        Raises:
            DataError: A file is missing, not an image, or of another size.
        """
        return self.normalise(torch.stack([self._read(path, fit) for path in paths]))

    def _read(self, path: Path, fit: bool) -> Tensor:
        channels, height, width = self.size
        with opened(path) as picture:
            if picture.size != (width, height) and not fit:
                raise DataError(
                    f"{path} has {picture.width}x{picture.height} pixels but the network takes {width}x{height}: "
                    "resize it, or use --fit to resize and crop"
                )
            plain = ImageOps.fit(picture.convert("RGB" if channels == 3 else "L"), (width, height))
            return torch.from_numpy(np.array(plain)).reshape(height, width, channels).permute(2, 0, 1)
