"""Truncation: z with fewer fractional bits, floor(z / 2^s) or one unit more. Local: no message, nothing dealt.

Products leave results at a larger scale than activations have. z = z_S + z_C mod 2^64; the client knows z_C before the
images.

Before the images
    1. client             screens: an image is unsafe if z_C lies within B (`window`) of 0 = 2^64 and is not 0, which is
                          the share of a public z = 0. Its row of the lot is discarded before any of it leaves.
    2. client             z_C' = z_C >> s, logical

With the images
    3. server             z_S' = -((-z_S) >> s), logical

z_S' + z_C' = (z_C >> s) - ((z_C - z) >> s) is right up to one unit for every |z| <= B, as z_C - z does not wrap then.
Screening makes the client's shares slightly non-uniform, by at most the probability of a discard.
"""

from dataclasses import dataclass

from torch import Tensor

from deepshare.private.engines.gateshare.crypto.ring import is_safe_to_truncate, truncate_client, truncate_server
from deepshare.private.engines.gateshare.protocols.step import (
    ClientOffline,
    InTheClear,
    ProtocolStep,
    ServerOnline,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class TruncationStep(ProtocolStep):
    """The input at a smaller scale.

    Attributes:
        by: s, the bits that are cut off.
        window: B, the largest |z|.
    """

    by: int
    window: int

    def is_early(self, inputs: list[bool]) -> bool:
        """Return True if z_C is."""
        return all(inputs)

    @property
    def unsafe_shares(self) -> float:
        """Number of uniform z_C that lie within the window."""
        return self.elements * 2 * self.window / 2**64

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do steps 1 and 2."""
        (z_C,) = inputs
        if not is_safe_to_truncate(z_C, self.window):
            at.unsafe.update(row for row, one in enumerate(z_C) if not is_safe_to_truncate(one, self.window))
        return truncate_client(z_C, self.by)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do step 3."""
        return truncate_server(inputs[0], self.by)

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """Round as the client's share decides, or down without it."""
        (z,) = inputs
        if at.shares is None:
            return z >> self.by
        z_C = at.shares[self.number]
        return truncate_client(z_C, self.by) + truncate_server(z - z_C, self.by)
