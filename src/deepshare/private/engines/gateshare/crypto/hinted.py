"""Products with weights under encryption: shares of W t mod 2^64, for kernels W of the server and t of the client.

Letters of `lattice`: polynomials mod X^4096 + 1, numbers mod q = 2^108, samples (A, A s + e). E = 2^44, so E m holds a
message m of 64 bits at the upper end. K channels ("slots", a power of two) of a layer go into one polynomial, channel k
at the powers k, k + K, k + 2 K and so on. Rows of maps lie one after the other, with zeros between them for the
padding, so that what a kernel reads of channel k at distance d is the polynomial times X^-(K d + k). Each polynomial
has a public A_j, made from the session; a is public, too.

Once per layer and K, before its first answer
    1. server -> client   H, for K outputs together: what the weights make of A_j by 4 and 5 below, + a u + e'
                          u is a secret, so H is random to the client                      40 KiB a polynomial: the hint

Before the images, with fresh secrets s, each for as many images as fit a polynomial
    2. client -> server   b = a s + e, and where K > 1 for powers g = 1 + 2 * 4096 / m, m = 2, 4 .. K:
                          A_gl s + e + 2^(18 + 15 l) s(X^g), l = 0..5     52 KiB a secret, 312 KiB a power: the keys
    3. client -> server   c_j = A_j s + e_j + E/K t_j, without 4 bits                       13 bytes a number of t
    4. server             y_o = sum of W_oid X^-(K d + k) c_j: at the powers of slot 0 is W t, at others rubbish
    5. server             merges outputs two by two, from m = K down to 2: y + y' X^(m/2) + (y - y' X^(m/2))(X^g). What
                          is at the powers of slot 0 counts twice, rubbish cancels. (..)(X^g) is a sample of s(X^g); its
                          public part in digits of 15 bits, times the keys, makes it one of s
       server             + b u at the positions of the result
       server -> client   Y - r for a random r, without 28 bits                             10 bytes a number of W t
       server             its share is r / E, rounded down
    6. client             its share is (what came - H s) / E, rounded down, plus 1

Y - H s = E W t + n, where n is what errors and rounding made. r is random mod q, so what the client has in 5 is random,
whatever n is, and nothing need drown n. The two shares are off by one unit in the last place where r comes as near to a
multiple of E as n is large: about one number in 2^12. With the largest weights that are admitted, and the worst errors,
|n| is still below E for up to four layers that are added (`MOST_ADDED`), so they are never off by more. Larger sums are
several products.

What the client sees is H, a sample of u and so random to it (RLWE), and Y - r, which is random by itself: nothing of W.
What the server sees are samples of s. The keys are samples, too, but of s(X^g) behind s: that this does no harm is
"circular security", which all usual libraries of homomorphic encryption assume.

A hint holds nothing of t, and serves for all secrets. SimplePIR (Henzinger et al., 2023) has hints of public data; here
u hides the data. Merging is that of Chen, Dai, Kim and Song (2021).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto import lattice
from deepshare.private.engines.gateshare.crypto.base_ot import Wire
from deepshare.private.engines.gateshare.crypto.lattice import DEGREE, LIMBS, Limbs, Spectrum
from deepshare.private.engines.gateshare.crypto.limb_matmul import Geometry, Pair
from deepshare.private.engines.gateshare.crypto.parallel import in_parallel
from deepshare.private.engines.gateshare.crypto.ring import derive, fresh_seed
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.channel import RefusalError

HINT, FRESH, ANSWER = 28, 4, 28
"""Bits that are dropped of what is sent: far below E."""
MOST_SLOTS = 64
HEAD_BYTES = 12
_HINT, _KEY, _SWITCH, _FRESH, _ANSWER = range(5)
_AT_ONCE = 32  # polynomials
_MERGE_WORK = 6.0  # of an output, in products, as measured
LARGEST_SUM = 1 << 28  # of the weights of an output, over layers that are added, so that errors stay below E
MOST_ADDED = 4  # layers, for the same reason
_WEIGHT_BITS = 14  # of a digit
_LARGEST_DIGIT = (1 << (_WEIGHT_BITS - 1)) - 1

Positions = NDArray[np.intp]


class _Frames:
    """Frames that say what they are, so that none is taken for another: a kind, a number and a second one.

    Args:
        wire: The connection to the other party.
        step: The number of the frames on it.
    """

    def __init__(self, wire: Wire, step: int) -> None:
        self._wire, self._step = wire, step

    def send(self, name: tuple[int, int, int], data: NDArray[np.uint8]) -> None:
        self._wire.send(self._step, np.array(name, np.uint32), data)

    def receive(self, name: tuple[int, int, int], size: int) -> NDArray[np.uint8]:
        frame = self._wire.receive(self._step, HEAD_BYTES + size)
        found = tuple(frame[:HEAD_BYTES].view(np.uint32).tolist())
        if found != name:
            raise RefusalError(f"a frame of encryption is number {found}, not {name}: start both parties again")
        return frame[HEAD_BYTES:]


@dataclass(frozen=True, kw_only=True)
class HintedLayer:
    """A layer as both parties know it; a fully connected one has maps of one position.

    Attributes:
        label: Of no other layer.
        takes: Channels, height and width of its input.
        outputs: Channels of its result.
        kernel: Height and width.
        geometry: How the kernel moves.
    """

    label: int
    takes: tuple[int, int, int]
    outputs: int
    kernel: Pair
    geometry: Geometry

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the result."""
        (high, wide), (_, height, width) = self.geometry.padding, self.takes
        return self.outputs, *self.geometry.positions((height + 2 * high, width + 2 * wide), self.kernel)

    @cached_property
    def row(self) -> int:
        """Numbers of a row, with the zeros before it, which are those behind the row before."""
        return self.takes[2] + self.geometry.padding[1]

    @cached_property
    def _whole(self) -> bool:
        """True if a map fits a polynomial, which then is its only window."""
        return (self.takes[1] + 2 * self.geometry.padding[0]) * self.row + self.geometry.padding[1] <= DEGREE

    @cached_property
    def _band(self) -> int:
        """Rows of the result that are computed from one window."""
        if self._whole:
            return self.shape[1]
        for band in range(self.shape[1], 0, -1):
            if self._seen(band) * self.row + self.geometry.padding[1] <= DEGREE:
                return band
        raise EngineError(f"rows of {self.takes[2]} numbers are too long for encryption: give smaller images")

    def _seen(self, band: int) -> int:
        """Rows that a window sees."""
        return (band - 1) * self.geometry.stride[0] + (self.kernel[0] - 1) * self.geometry.dilation[0] + 1

    @property
    def _windows(self) -> int:
        """Windows of an image."""
        return -(-self.shape[1] // self._band)

    @property
    def _step(self) -> int:
        """Numbers of a window; of one that is a whole map without the zeros below it, which are those of the next."""
        return self.row * (self.takes[1] + self.geometry.padding[0] if self._whole else self._seen(self._band))

    @property
    def _tail(self) -> int:
        """Zeros behind the last window."""
        high, wide = self.geometry.padding
        return wide + (high * self.row if self._whole else 0)

    def blocks(self, images: int) -> Iterator[slice]:
        """Windows of all images that go into one polynomial."""
        windows, most = images * self._windows, (DEGREE - self._tail) // self._step
        return (slice(begin, min(begin + most, windows)) for begin in range(0, windows, most))

    def length(self, block: slice) -> int:
        """Numbers of a channel that are sent for a block."""
        windows: int = block.stop - block.start
        return windows * self._step + self._tail

    def written(self, t: Tensor) -> NDArray[np.int64]:
        """Maps (images, C, H, W) as windows (images * windows, C, numbers)."""
        (high, wide), (down, _) = self.geometry.padding, self.geometry.stride
        images, channels, height, _ = t.shape
        rows = self._step // self.row
        first = self._band * down
        padded = t.new_zeros(images, channels, max(high + height, (self._windows - 1) * first + rows), self.row)
        padded[:, :, high : high + height, wide:] = t
        parts = [padded[:, :, place * first : place * first + rows] for place in range(self._windows)]
        return torch.stack(parts, 1).reshape(images * self._windows, channels, -1).numpy()

    def positions(self, windows: int) -> Positions:
        """Positions of the results of some windows, (windows, rows, columns)."""
        (down, right), (_, _, wide) = self.geometry.stride, self.shape
        rows = np.arange(windows)[:, None] * self._step + np.arange(self._band) * down * self.row
        return rows[..., None] + np.arange(wide) * right

    def sizes(self, block: slice, images: int) -> tuple[int, int]:
        """Polynomials, and coefficients of each, that are sent for a block."""
        K = self.slots(images)
        return -(-self.takes[0] // K), K * self.length(block)

    def results(self, polynomials: Limbs, outputs: slice, windows: int, K: int) -> NDArray[np.int64]:
        """Results of some outputs within (6, polynomials, 4096), as (6, windows, outputs, rows, columns)."""
        at = K * self.positions(windows) + np.arange(K)[:, None, None, None]
        found = polynomials[:, :, at].reshape(LIMBS, -1, *at.shape[1:])
        return found[:, : outputs.stop - outputs.start].swapaxes(1, 2)

    def joined(self, results: Sequence[NDArray[np.int64]], images: int) -> NDArray[np.int64]:
        """Results (..., windows, outputs, rows, columns) of blocks as (..., images, *shape)."""
        whole = np.concatenate(results, -4)
        *more, _, outputs, band, wide = whole.shape
        whole = whole.reshape(*more, images, self._windows, outputs, band, wide)
        whole = np.moveaxis(whole, -4, -3).reshape(*more, images, outputs, -1, wide)
        return whole[..., : self.shape[1], :]

    def slots(self, images: int) -> int:
        """K, such that the fewest bytes are sent."""
        blocks = list(self.blocks(images))
        if len(blocks) > 1:
            return 1
        fitting = [1 << place for place in range(MOST_SLOTS.bit_length()) if self.length(blocks[0]) << place <= DEGREE]

        def sent(K: int) -> int:
            inputs = -(-self.takes[0] // K) * K * self.length(blocks[0]) * lattice.packed_bytes(FRESH)
            return inputs + -(-self.outputs // K) * DEGREE * lattice.packed_bytes(HINT)

        return min(fitting, key=sent)

    def public(self, session: bytes, K: int) -> Limbs:
        """A_j of all polynomials, (6, polynomials, 4096)."""
        count = -(-self.takes[0] // K)
        found = [lattice.uniform(session, DEGREE, "layer", self.label, K, place) for place in range(count)]
        return np.stack(found, 1)

    def polynomials(self, windows: NDArray[np.int64], K: int) -> NDArray[np.int64]:
        """Windows (windows, C, numbers) of one block as coefficients, (polynomials, K * length)."""
        count, channels, numbers = windows.shape
        room = np.zeros((-(-channels // K) * K, count * numbers + self._tail), np.int64)
        room[:channels, : count * numbers] = windows.transpose(1, 0, 2).reshape(channels, -1)
        return room.reshape(-1, K, room.shape[1]).transpose(0, 2, 1).reshape(-1, K * room.shape[1])

    def kernels(self, weight: NDArray[np.int64], outputs: slice, K: int) -> tuple[slice, NDArray[np.int64]]:
        """The polynomials that some outputs read, and sums of W_oid X^-(K d + k), (outputs, polynomials, 4096)."""
        groups, channels = self.geometry.groups, weight.shape[1]
        begins = np.arange(outputs.start, outputs.stop) // (self.outputs // groups) * channels
        some = slice(int(begins[0]) // K, -(-(int(begins[-1]) + channels) // K))
        dense = np.zeros((len(begins), (some.stop - some.start) * K, *self.kernel), np.int64)
        for place, begin in enumerate(begins - some.start * K):
            dense[place, begin : begin + channels] = weight[outputs.start + place]
        dense = dense.reshape(len(begins), -1, K, *self.kernel)
        out = np.zeros((*dense.shape[:2], DEGREE), np.int64)
        below, beside = self.geometry.dilation
        for row, column in np.ndindex(*self.kernel):
            power = K * (row * below * self.row + column * beside) + np.arange(K)
            out[..., -power % DEGREE] += np.where(power > 0, -1, 1) * dense[..., row, column]
        return some, out


class HintedEnd(Protocol):
    """Either party's end."""

    def start(self, images: int) -> None:
        """Do step 2, before the first product of some images: each layer is multiplied once."""

    def product(self, layers: Sequence[HintedLayer], own: Sequence[Tensor], images: int) -> Tensor:
        """A share of the sum of the layers' results, (images, *shape).

        Args:
            layers: Whose results have one shape.
            own: Of the client the inputs of each, (images, C, H, W); of the server nothing.
            images: How many.

        Raises:
            EngineError: The other party sent something else.
            ConnectionError: It is gone.
        """


# Sizes


def hint_cost(layers: Sequence[HintedLayer], batches: Sequence[int]) -> Part:
    """Bytes of step 1, of which batches of other numbers of images may need others."""
    size, cost = DEGREE * lattice.packed_bytes(HINT), Part()
    for layer in layers:
        for K in {layer.slots(images) for images in batches}:
            frames = len(list(_chunks(layer, K)))
            cost += Part(server_bytes=-(-layer.outputs // K) * size + frames * HEAD_BYTES)
    return cost


def secret_count(layers: Sequence[HintedLayer], images: int) -> int:
    """Secrets that some images take."""
    return max((len(list(layer.blocks(images))) for layer in layers), default=0)


def secret_cost(layers: Sequence[HintedLayer], images: int) -> Part:
    """Bytes of step 2."""
    size = DEGREE * lattice.packed_bytes(FRESH)
    keys = (size + HEAD_BYTES) * secret_count(layers, images)
    return Part(client_bytes=keys + (lattice.DIGITS * size + HEAD_BYTES) * len(_powers(layers, images)))


def hinted_cost(layers: Sequence[HintedLayer], images: int) -> Part:
    """Bytes of steps 3 to 5, of layers whose results are added."""
    blocks = [layer.sizes(block, images) for layer in layers for block in layer.blocks(images)]
    numbers = images * math.prod(layers[0].shape)
    return Part(
        client_bytes=sum(map(math.prod, blocks)) * lattice.packed_bytes(FRESH) + len(blocks) * HEAD_BYTES,
        server_bytes=numbers * lattice.packed_bytes(ANSWER) + HEAD_BYTES,
    )


def hinted_work(layers: Sequence[HintedLayer], images: int) -> float:
    """Work of the server for steps 4 and 5, about, in products of a polynomial by a weight's digits."""
    work = 0.0
    for layer in layers:
        blocks, merges = [layer.sizes(block, images)[0] for block in layer.blocks(images)], layer.slots(images) > 1
        work += layer.outputs * (sum(blocks) + _MERGE_WORK * merges * len(blocks))
    return work


def _powers(layers: Sequence[HintedLayer], images: int) -> list[int]:
    """All m of step 2."""
    most = max((layer.slots(images) for layer in layers), default=1)
    return [1 << place for place in range(1, most.bit_length())]


def _chunks(layer: HintedLayer, K: int) -> Iterator[slice]:
    """Outputs that are made at a time, whole polynomials but for the last."""
    size = max(_AT_ONCE, K)
    return (slice(begin, min(begin + size, layer.outputs)) for begin in range(0, layer.outputs, size))


# The server


class HintedServer:
    """The server's end.

    Args:
        wire: The connection to the client.
        step: The number of the frames on it.
        session: What both have in common.
        weights: By layer, ring elements.
    """

    def __init__(self, wire: Wire, step: int, session: bytes, weights: Sequence[tuple[HintedLayer, Tensor]]) -> None:
        self._frames, self._session = _Frames(wire, step), derive(session, "hinted")
        self._seed, self._weights = fresh_seed(), {layer: weight.numpy() for layer, weight in weights}
        _check_labels([layer for layer, _ in weights])
        for _, weight in weights:
            check_weights([weight])
        # As many for all layers, so that time does not tell which have large weights.
        self._digits = _digit_count(max((int(weight.abs().max()) for _, weight in weights), default=0))
        self._sent: set[tuple[int, int]] = set()
        self._b: list[Limbs] = []
        self._switches: dict[int, Spectrum] = {}

    def start(self, images: int) -> None:
        """Do step 2."""
        layers, size = list(self._weights), DEGREE * lattice.packed_bytes(FRESH)
        keys = (self._frames.receive((_KEY, 0, place), size) for place in range(secret_count(layers, images)))
        self._b = [lattice.unpacked(key, (1, DEGREE), FRESH) for key in keys]
        for m in _powers(layers, images):
            data = self._frames.receive((_SWITCH, m, 0), lattice.DIGITS * size)
            # (2048, digits, limbs of the public part and of the other)
            both = [_switch_keys(self._session, m), lattice.unpacked(data, (lattice.DIGITS, DEGREE), FRESH)]
            waves = np.concatenate([lattice.waves(one) for one in both])
            self._switches[m] = np.ascontiguousarray(waves.transpose(2, 1, 0))

    def product(self, layers: Sequence[HintedLayer], own: Sequence[Tensor], images: int) -> Tensor:
        """Do steps 3 to 5, and 1 for a layer that was not multiplied before; see `HintedEnd`."""
        total = sum((self._answers(layer, images) for layer in layers), np.zeros((), np.int64))
        r = lattice.uniform(fresh_seed(), total[0].size, "answers").reshape(total.shape)
        self._frames.send((_ANSWER, layers[0].label, 0), lattice.packed(lattice.carried(total - r), ANSWER))
        return torch.from_numpy(lattice.upper(r))

    def _answers(self, layer: HintedLayer, images: int) -> NDArray[np.int64]:
        """Y of all images, (6, images, *shape), to be carried."""
        K, results = layer.slots(images), []
        A = _inputs(layer.public(self._session, K))
        sent_before = (layer.label, K) in self._sent
        self._sent.add((layer.label, K))
        for place, block in enumerate(layer.blocks(images)):
            c, windows = _inputs(self._receive(layer, place, block, images)), block.stop - block.start
            chunks, hints = list(_chunks(layer, K)), not sent_before and not place
            # Without merging, the public part is needed for hints alone.
            inputs = np.concatenate([A, c], 2) if hints or K > 1 else c
            made: dict[int, list[Limbs]] = {}
            in_parallel([partial(self._chunk, layer, some, K, inputs, made) for some in chunks])
            found = []
            for some in chunks:
                *public, Y = made.pop(some.start)
                masks = self._masks(layer, some, K)
                if hints:
                    self._send_hints(layer, some, K, masks, *public)
                Y += lattice.times(self._b[place], masks)
                found.append(layer.results(Y, some, windows, K))
            results.append(np.concatenate(found, 2))
        return layer.joined(results, images)

    def _chunk(self, layer: HintedLayer, some: slice, K: int, inputs: Spectrum, made: dict[int, list[Limbs]]) -> None:
        made[some.start] = self._multiplied(layer, some, K, inputs)
        if K > 1:
            made[some.start] = self._merged(made[some.start], K)

    def _receive(self, layer: HintedLayer, place: int, block: slice, images: int) -> Limbs:
        """c_j, with zeros behind what is sent."""
        sizes = layer.sizes(block, images)
        data = self._frames.receive((_FRESH, layer.label, place), math.prod(sizes) * lattice.packed_bytes(FRESH))
        c = np.zeros((LIMBS, sizes[0], DEGREE), np.int64)
        c[:, :, : sizes[1]] = lattice.unpacked(data, sizes, FRESH)
        return c

    def _multiplied(self, layer: HintedLayer, some: slice, K: int, inputs: Spectrum) -> list[Limbs]:
        """Do step 4 for one or two kinds of polynomials (2048, polynomials, 6 a kind): each (6, outputs, 4096)."""
        which, kernels = layer.kernels(self._weights[layer], some, K)
        inputs = np.ascontiguousarray(inputs[:, which])
        total, half = np.zeros((inputs.shape[2], len(kernels), DEGREE), np.int64), 1 << (_WEIGHT_BITS - 1)
        for place in range(0, self._digits * _WEIGHT_BITS, _WEIGHT_BITS):
            digit = ((kernels + half) & (2 * half - 1)) - half
            W = np.ascontiguousarray(lattice.spectrum(digit).transpose(2, 0, 1))
            total += lattice.whole(np.ascontiguousarray((W @ inputs).transpose(2, 1, 0))) << place
            kernels = (kernels - digit) >> _WEIGHT_BITS
        return [total[begin : begin + LIMBS] for begin in range(0, len(total), LIMBS)]

    def _merged(self, samples: list[Limbs], K: int) -> list[Limbs]:
        """Do step 5 for samples [A, c], with K outputs for each polynomial: (6, polynomials, 4096) of either."""
        both = np.stack(samples)
        lacking = -both.shape[2] % K
        both = np.pad(both, ((0, 0), (0, 0), (0, lacking), (0, 0))).reshape(2, LIMBS, -1, K, DEGREE)
        for m in reversed([1 << place for place in range(1, K.bit_length())]):
            first, second = both[:, :, :, : m // 2], lattice.turned(both[:, :, :, m // 2 :], m // 2)
            moved = lattice.conjugated(first - second, _power(m))
            count = moved[0, 0].size // DEGREE
            public = lattice.digits(moved[0].reshape(LIMBS, count, DEGREE))
            D = np.ascontiguousarray(lattice.spectrum(public).transpose(2, 1, 0))
            products = lattice.whole(np.ascontiguousarray((D @ self._switches[m]).transpose(2, 1, 0)))
            both = first + second - products.reshape(moved.shape)
            both[1] += moved[1]
            both = np.stack([lattice.carried(one) for one in both])
        return [both[0, :, :, 0], both[1, :, :, 0]]

    def _send_hints(self, layer: HintedLayer, some: slice, K: int, masks: Spectrum, bare: Limbs) -> None:
        """Do step 1 with what the weights make of A_j."""
        hidden = bare + lattice.times(_public_key(self._session), masks)
        hidden[0] += self._errors(layer, some, K)
        self._frames.send((_HINT, layer.label, some.start), lattice.packed(lattice.carried(hidden), HINT))

    def _masks(self, layer: HintedLayer, some: slice, K: int) -> Spectrum:
        """u of each polynomial, (polynomials, 2048)."""
        places = range(some.start, some.stop, K)
        drawn = [lattice.secrets(self._seed, 1, "mask", layer.label, K, place)[0] for place in places]
        return lattice.spectrum(np.stack(drawn))

    def _errors(self, layer: HintedLayer, some: slice, K: int) -> NDArray[np.int64]:
        """e' of each polynomial, (polynomials, 4096)."""
        places = range(some.start, some.stop, K)
        return np.stack([lattice.errors(self._seed, DEGREE, "error", layer.label, K, place) for place in places])


# The client


class HintedClient:
    """The client's end; see `HintedServer`."""

    def __init__(self, wire: Wire, step: int, session: bytes, layers: Sequence[HintedLayer]) -> None:
        self._frames, self._session, self._layers = _Frames(wire, step), derive(session, "hinted"), layers
        _check_labels(layers)
        self._hints: dict[tuple[int, int], list[NDArray[np.uint8]]] = {}
        self._secrets: list[Spectrum] = []
        self._used: set[tuple[int, int]] = set()

    def start(self, images: int) -> None:
        """Do step 2."""
        seed, a = fresh_seed(), _public_key(self._session)
        self._used = set()
        drawn = lattice.secrets(seed, secret_count(self._layers, images), "secret")
        self._secrets = [lattice.spectrum(s)[None] for s in drawn]
        for place, s in enumerate(self._secrets):
            b = lattice.times(a, s)
            b[0] += lattice.errors(seed, DEGREE, "key", place)
            self._frames.send((_KEY, 0, place), lattice.packed(lattice.carried(b), FRESH))
        for m in _powers(self._layers, images):  # only where one polynomial, with the first secret, has all images
            keys = lattice.times(_switch_keys(self._session, m), self._secrets[0])
            keys[0] += lattice.errors(seed, lattice.DIGITS * DEGREE, "switch", m).reshape(-1, DEGREE)
            moved = lattice.conjugated(drawn[0], _power(m))
            for place in range(lattice.DIGITS):
                limb, bits = divmod(lattice.DIGITS_BEGIN + lattice.DIGIT_BITS * place, lattice.LIMB_BITS)
                keys[limb, place] += moved << bits
            self._frames.send((_SWITCH, m, 0), lattice.packed(lattice.carried(keys), FRESH))

    def product(self, layers: Sequence[HintedLayer], own: Sequence[Tensor], images: int) -> Tensor:
        """Do steps 3 and 6; see `HintedEnd`."""
        for layer, t in zip(layers, own, strict=True):
            self._encrypt(layer, t)
        # While the server multiplies.
        known = sum((self._known(layer, images) for layer in layers), np.zeros((), np.int64))
        size = known[0].size * lattice.packed_bytes(ANSWER)
        data = self._frames.receive((_ANSWER, layers[0].label, 0), size)
        answer = lattice.unpacked(data, known.shape[1:], ANSWER)
        return torch.from_numpy(lattice.upper(lattice.carried(answer - known)) + 1)

    def _encrypt(self, layer: HintedLayer, t: Tensor) -> None:
        """Do step 3."""
        windows, K, seed = layer.written(t), layer.slots(len(t)), fresh_seed()
        public = layer.public(self._session, K)
        for place, block in enumerate(layer.blocks(len(t))):
            if (layer.label, place) in self._used:
                raise AssertionError("a secret serves for a layer once")
            self._used.add((layer.label, place))
            message = layer.polynomials(windows[block], K)
            c = lattice.scaled(message, K.bit_length() - 1)
            c[0] += lattice.errors(seed, message.size, "errors", place).reshape(message.shape)
            c += lattice.times(public, self._secrets[place])[..., : message.shape[1]]
            self._frames.send((_FRESH, layer.label, place), lattice.packed(lattice.carried(c), FRESH))

    def _known(self, layer: HintedLayer, images: int) -> NDArray[np.int64]:
        """H s of all images, (6, images, *shape), to be carried."""
        K, results = layer.slots(images), []
        if (layer.label, K) not in self._hints:
            self._hints[layer.label, K] = [self._receive_hints(layer, some, K) for some in _chunks(layer, K)]
        for place, block in enumerate(layer.blocks(images)):
            windows, found = block.stop - block.start, []
            for some, data in zip(_chunks(layer, K), self._hints[layer.label, K], strict=True):
                hints = lattice.unpacked(data, (-(-(some.stop - some.start) // K), DEGREE), HINT)
                found.append(layer.results(lattice.times(hints, self._secrets[place]), some, windows, K))
            results.append(np.concatenate(found, 2))
        return layer.joined(results, images)

    def _receive_hints(self, layer: HintedLayer, some: slice, K: int) -> NDArray[np.uint8]:
        count = -(-(some.stop - some.start) // K)
        size = count * DEGREE * lattice.packed_bytes(HINT)
        return self._frames.receive((_HINT, layer.label, some.start), size)


def _public_key(session: bytes) -> Limbs:
    """The public a, (4, 1, 4096)."""
    return lattice.uniform(session, DEGREE, "key")[:, None]


def _digit_count(largest: int) -> int:
    """Digits of numbers of at most this size."""
    count, most = 1, _LARGEST_DIGIT
    while most < largest:
        count, most = count + 1, (most << _WEIGHT_BITS) + _LARGEST_DIGIT
    return count


def _power(m: int) -> int:
    """g."""
    return 1 + 2 * DEGREE // m


def _switch_keys(session: bytes, m: int) -> Limbs:
    """A_gl of all digits, (6, digits, 4096)."""
    return lattice.uniform(session, lattice.DIGITS * DEGREE, "switch", m).reshape(LIMBS, -1, DEGREE)


def _inputs(polynomials: Limbs) -> Spectrum:
    """Polynomials (6, n, 4096) transformed, (2048, n, 6)."""
    return lattice.waves(polynomials).transpose(2, 1, 0)


def _check_labels(layers: Sequence[HintedLayer]) -> None:
    if len({layer.label for layer in layers}) < len(layers):
        raise AssertionError("layers of one label would have the same public polynomials and masks")


def check_weights(weights: Sequence[Tensor]) -> None:
    """Check the weights of layers whose results are added.

    Raises:
        EngineError: Their sums would not be exact.
    """
    if len(weights) > MOST_ADDED:
        raise AssertionError(f"errors of {len(weights)} layers may add up to a unit")
    largest = sum(int(weight.abs().flatten(1).sum(1).max()) for weight in weights)
    if largest >= LARGEST_SUM:
        raise EngineError(f"weights of an output of {largest} units are too large: use fewer fractional bits")
