"""What an inference's marks cost: SQLite puts them on the disk before a lot is used.

    python benchmarks/marks.py [--folder FOLDER] [--json]

Both parties' pools have so many lots. For each inference of one image the client marks its lot as spent, and records
some as unusable; the server looks up the lot that it is shown and marks it, in the limit of its owner. Prints
milliseconds of each party, and of the least that any mark takes: 100 bytes appended to a file and synced. They depend
on the disk: give a folder on the one that the pools will be on. At most 5 ms for a party is what a server should take.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from deepshare.private.engines.gateshare.lot import ID_BYTES
from deepshare.private.engines.gateshare.preprocessing.marks import Marks

OWNER = "client"
# One of so many lots is discarded.
DISCARDED = 10
LIMIT_MS = 5.0


def measure(folder: Path, lots: int, inferences: int) -> dict[str, float]:
    """Milliseconds of an inference's marks."""
    names = [os.urandom(ID_BYTES) for _ in range(lots)]
    parties = {}
    for party in ("client", "server"):
        (folder / party).mkdir()
        parties[party] = Marks.create(folder / party, {OWNER: lots})
        parties[party].add(names, OWNER)
    client, server = parties["client"], parties["server"]
    found: dict[str, list[float]] = {"client": [], "server": [], "sync": []}
    with closing(client), closing(server), (folder / "file").open("ab", buffering=0) as file:
        for number, name in enumerate(names[:inferences]):
            began = time.perf_counter()
            client.spend([name], limited=False)
            if number % DISCARDED == 0:
                client.discard(name)
            asked = time.perf_counter()
            if server.state(name) is None:
                raise AssertionError("a lot is lost")
            server.spend([name], limited=True)
            found["client"].append(1000 * (asked - began))
            marked = time.perf_counter()
            found["server"].append(1000 * (marked - asked))
            file.write(bytes(100))
            os.fsync(file.fileno())
            found["sync"].append(1000 * (time.perf_counter() - marked))
        used = {one.used for one in server.stock()}
    if used != {inferences}:
        raise AssertionError(f"{used} lots are marked, not {inferences}")
    return {
        f"{name}_{kind}_ms": value
        for name, times in found.items()
        for kind, value in (("median", statistics.median(times)), ("p99", sorted(times)[int(0.99 * (inferences - 1))]))
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default the temporary folder")
    parser.add_argument("--lots", type=int, default=10_000)
    parser.add_argument("--inferences", type=int, default=1_000)
    parser.add_argument("--tiny", action="store_true", help="20 inferences: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    lots, inferences = (100, 20) if options.tiny else (options.lots, options.inferences)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure(Path(folder), lots, inferences)
    figures = {"lots": lots, "inferences": inferences} | figures
    if options.json:
        print(json.dumps(figures))
        return
    print(f"marks of {inferences:,} inferences in pools of {lots:,} lots, milliseconds an inference")
    for name in (name for name in figures if name.endswith("_ms")):
        print(f"{name.removesuffix('_ms').replace('_', ', '):16} {figures[name]:8.2f}")
    slower = max(figures["client_median_ms"], figures["server_median_ms"])
    print(f"{'below' if slower < LIMIT_MS else 'BEYOND'} the limit of {LIMIT_MS:g}")


if __name__ == "__main__":
    main()
