import pytest
import torch

from deepshare.private.engines.crypten.link import RANKS, GlooLink
from deepshare.private.engines.crypten.triples import (
    CorrectedShares,
    Mask,
    SeededShares,
    TripleProvider,
    TrustedFirstParty,
    TrustedThirdParty,
)
from tests.private.engines.crypten.parties import in_all_parties


def masks(source: TripleProvider) -> list[Mask]:
    a, b = source.fresh((3, 4)), source.fresh((4,))
    bits = source.fresh((5,), xor=True, bits=1)
    return [
        a,
        b,
        source.derived((3, 4), lambda: a.value * b.value),
        bits,
        source.derived((5,), lambda: bits.value),
        source.derived((5,), lambda: bits.value & -1, xor=True),
        b.map(lambda part: part.view(2, 2)),
    ]


def check(server: list[Mask], client: list[Mask], known: list[Mask]) -> None:
    xor = [False, False, False, True, False, True, False]
    for mine, theirs, mask, exclusive in zip(server, client, known, xor, strict=True):
        both = mine.share ^ theirs.share if exclusive else mine.share + theirs.share
        assert torch.equal(both, mask.value)
        with pytest.raises(RuntimeError, match="does not know"):
            _ = theirs.value
    assert torch.equal(known[2].value, known[0].value * known[1].value)
    assert set(known[3].value.tolist()) <= {0, 1}


def test_a_first_party_knows_all_masks_and_the_client_its_shares() -> None:
    first = TrustedFirstParty(1, 2)
    server = masks(first)
    check(server, masks(SeededShares(2)), server)
    assert first.dealt == (12 + 5 + 5) * 8


def test_a_third_party_deals_what_adds_up() -> None:
    def work(link: GlooLink) -> tuple[list[Mask], int, int]:
        sources: list[TripleProvider] = [CorrectedShares(1, link), SeededShares(2), TrustedThirdParty(1, 2, link)]
        source = sources[link.rank]
        made = masks(source)
        link.part()
        return made, source.dealt, link.sent

    server, client, dealer = in_all_parties(tuple(RANKS), work)
    check(server[0], client[0], dealer[0])
    assert dealer[1:] == ((12 + 5 + 5) * 8, (12 + 5 + 5) * 8) and server[1:] == client[1:] == (0, 0)
    with pytest.raises(RuntimeError, match="does not know"):
        _ = server[0][0].value
