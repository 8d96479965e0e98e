"""One torch thread for each test process, and the same random numbers in every run."""

import os
import signal
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

torch.set_num_threads(1)
# A shell lets what it starts in the background ignore SIGINT, and with it the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> Iterator[None]:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - for libraries that draw from the global generator
    yield
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
