"""Trained networks by name: their entries, checksums and cards.

Entries are part of the package and weights are not: they are run folders of the repository, under `results/`, or of the
folder that DEEPSHARE_NETWORKS names. `dev/networks.py` makes an entry from a run folder.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

from deepshare.errors import CheckpointError
from deepshare.text import byte_size, nearest, table

VARIABLE = "DEEPSHARE_NETWORKS"
REPOSITORY = Path(__file__).parents[4] / "results"
_ENTRIES = resources.files("deepshare.training") / "networks"


@dataclass(frozen=True)
class NamedNetwork:
    """A trained network of the repository.

    Attributes:
        name: Its name.
        about: What it is, in one sentence.
        run: Its run folder within `results/`.
        data: Name of its data set.
        score: Name of the score.
        test: Score on the test images after the last epoch, in percent.
        validation: Score on the validation images after the last epoch, in percent.
        gates: Comparisons per image.
        neurons: ReLUs of the plain network.
        trained: How it was trained, in one line.
        command: Command line of its run.
        files: SHA-256 checksum of every file that makes the network, by name.
        size: Bytes of these files.
    """

    name: str
    about: str
    run: str
    data: str
    score: str
    test: float
    validation: float
    gates: int
    neurons: int
    trained: str
    command: str
    files: dict[str, str]
    size: int

    @property
    def result(self) -> str:
        """Its test score with its name."""
        return f"{self.test:.2f}% {'mIoU' if self.score == 'miou' else self.score}"

    def to_json(self) -> str:
        """Its entry as a file."""
        return json.dumps(asdict(self), indent=1) + "\n"


def names() -> list[str]:
    """Names of all networks."""
    return sorted(file.name.removesuffix(".json") for file in _ENTRIES.iterdir() if file.name.endswith(".json"))


def find(name: str) -> NamedNetwork:
    """Return the entry of a network.

    Raises:
        CheckpointError: There is no such network.
    """
    if name not in names():
        raise CheckpointError(
            f'no network is called "{name}"{nearest(name, names())} (`deepshare networks` lists them)'
        )
    return NamedNetwork(**json.loads((_ENTRIES / f"{name}.json").read_text(encoding="utf-8")))


def folder_of(name: str) -> Path | None:
    """Return the checked run folder of a network; None if there is no such network.

    Raises:
        CheckpointError: The network's files are not there, or have been changed.
    """
    return locate(find(name)) if name in names() else None


def locate(network: NamedNetwork, root: Path | None = None) -> Path:
    """Return the run folder of a network, after a check of every file.

    Args:
        network: The network.
        root: Folder with run folders, as in `results/`, or by name; by default the one that DEEPSHARE_NETWORKS names,
            or the repository's.

    Raises:
        CheckpointError: A file is missing, or its checksum differs.
    """
    root = root or Path(os.environ.get(VARIABLE) or REPOSITORY)
    places = (root / network.name, root / network.run)
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise CheckpointError(
            f"{root} does not have the network {network.name}: its weights ({byte_size(network.size)}) are in the "
            f"repository and not in the package: set {VARIABLE} to the folder results of a clone"
        )
    for name, wanted in network.files.items():
        if not (folder / name).is_file() or checksum(folder / name) != wanted:
            raise CheckpointError(
                f"{folder / name} is missing or not that of {network.name}: take it from the clone again"
            )
    return folder


def checksum(file: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def as_table(networks: Sequence[NamedNetwork], width: int | None = None) -> str:
    """Format networks as a table, with lines of at most `width` characters."""
    cells = [
        (n.name, f"{n.gates:,} of {n.neurons:,}", n.result, byte_size(n.size), n.data, n.trained) for n in networks
    ]
    return table(("name", "gates", "test", "size", "data", "how trained"), cells, "<>><<<", width)


def card(network: NamedNetwork) -> str:
    """Return the model card of a network, in Markdown."""
    n = network
    files = "\n".join(f"| `{name}` | `{digest}` |" for name, digest in n.files.items())
    return f"""# Network {n.name}

{n.about}

| | |
|---|---|
| gates | {n.gates:,} of {n.neurons:,} ReLUs ({n.gates / n.neurons:.2%}) |
| test | {n.result} |
| validation | {n.validation:.2f}% |
| data | {n.data} |
| trained | {n.trained} |
| command | `{n.command}` |
| size | {byte_size(n.size)} |

```python
import deepshare

network = deepshare.load("{n.name}")
```

**For** trying and testing: private inference, export, reports. It is small and was trained for few epochs on two cores,
and is far from what its architecture can reach. **Not for** decisions about anything.

**Limits.** One seed. It tells apart the classes of {n.data} and nothing else; on other images its answer means nothing.
Weights are MIT-licensed; the images that they were trained on have terms of their own.

| file | SHA-256 |
|---|---|
{files}
"""
