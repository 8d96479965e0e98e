"""Pictures from anywhere: whatever is in them, one line and little memory."""

import io
import random
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, features

from deepshare.data.images import About
from deepshare.data.pictures import FORMATS, MOST_PIXELS
from deepshare.errors import DataError

ABOUT = About(size=(3, 16, 16), mean=(0.5,) * 3, std=(0.2,) * 3, classes=("a",))


class Named(io.BytesIO):
    def __str__(self) -> str:
        return "the picture"


def said_of(data: bytes) -> str:
    try:
        ABOUT.read([Named(data)], fit=True)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_damaged_pictures_are_errors_of_one_line(kind: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("Pillow has no AVIF here")
    room = io.BytesIO()
    Image.effect_noise((24, 24), 50).convert("RGB").save(room, kind)
    whole, chance = room.getvalue(), random.Random(5)
    assert said_of(whole) == ""
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 5, 20))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        said = said_of(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
        assert len(said.splitlines()) <= 1
        refused += bool(said)
    assert refused


def test_formats_that_start_programs_are_not_read() -> None:
    assert "damaged or no image" in said_of(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\n")


def test_bombs_take_little_memory(tmp_path: Path) -> None:
    for side in (8_000, 9_000):  # below the limit and above it
        Image.new("L", (side, side)).save(tmp_path / f"{side}.png")
        assert (tmp_path / f"{side}.png").stat().st_size < 1 << 17
    code = (
        "import resource, sys\n"
        "from tests.data.test_pictures import said_of\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in ('9000', '8000'):\n"
        "    print(said_of(open(f'{sys.argv[1]}/{name}.png', 'rb').read()))\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, cwd=root)
    assert done.stderr == ""
    refused, little, read, some = done.stdout.splitlines()
    assert refused == f"the picture: has 9000x9000 pixels, more than {MOST_PIXELS:,}: reduce it first"
    assert int(little) < 50_000
    assert read == "" and int(some) < 500_000
