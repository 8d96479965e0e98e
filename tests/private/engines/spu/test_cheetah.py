import pytest

from deepshare.private.engines.spu.cheetah import Triples, product, tile
from deepshare.private.runtime.outcome import Part


# As the runtime itself logs it.
@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ((16, 64, 10), (16, 64, 8)),
        ((64, 128, 64), (64, 128, 1)),
        ((1024, 9, 4), (1024, 8, 1)),
        ((1024, 36, 4), (64, 32, 4)),
        ((4, 1152, 64), (4, 1024, 2)),
        ((256, 288, 32), (1, 256, 32)),
        ((4096, 27, 8), (64, 16, 8)),
    ],
)
def test_products_are_cut_as_the_runtime_cuts_them(sizes: tuple[int, int, int], blocks: tuple[int, int, int]) -> None:
    assert tile(*sizes, packs=True) == blocks


def test_the_smaller_factor_is_encrypted() -> None:
    weights, share = product(1024, 36, 4), product(16, 576, 64)
    assert weights.server_bytes == 2 * 184_980 and weights.client_bytes == 254_490
    assert share.client_bytes == 2 * 184_980 and share.server_bytes == 254_490


def test_triples_are_made_in_batches_and_kept() -> None:
    triples = Triples()
    assert triples.product(4095) == Part(server_bytes=16 * 4095, client_bytes=16 * 4095, rounds=1)
    made = triples.product(1)
    assert made.rounds == 2 and made.server_bytes > 500_000
    assert triples.product(4095).rounds == 1
