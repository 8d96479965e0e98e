"""Yardsticks of the source tree: files on the way of a job, flat rooms, names and openings of docstrings.

    python dev/house.py [--static] [--root DIR] [--list]

A file is on the way of a job if one of its functions runs. The jobs are real ones on the bundled digits: `fit`,
`private run`, `serve` with `ask`, and `compare`. Two figures stand for each: the files of all its processes together,
and those of the process that has the most, which is what a reader of one process follows.

"Files that name the gate's step" are files of the gateshare engine whose text, comments included, has the class of that
step as a word: `GateStep`, in older trees `Gate`. They dispatch on it, make it or compute with it. The compiler, which
makes all steps, does not count; nor does a file that has gates in other words, such as `comparison.py`.

With `--root` another checkout is measured by the same yardsticks; `--list` names what was counted. Every figure is
printed once it is measured.
"""

import argparse
import ast
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

QUESTION = re.compile(r"(What|How|Where|Who|Whose|Whether|Which|When|Why)\b")
GATE = re.compile(r"\bGate(Step)?\b")
COMPILERS = ("compile.py", "gateshare/schedule.py")

# Notes each file of the package with the process, when a function of it is first called there.
WATCH = """
import os, sys, threading
if "WAY" in os.environ:
    noted = os.open(os.environ["WAY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    seen = set()
    os.register_at_fork(after_in_child=seen.clear)
    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename not in seen and code.co_flags & 1 and code.co_name[0] != "<":
            if "/src/deepshare/" in code.co_filename:
                seen.add(code.co_filename)
                line = f"{os.getpid()} {code.co_filename.split('/src/deepshare/')[1]}\\n"
                os.write(noted, line.encode())
    sys.setprofile(watch)
    threading.setprofile(watch)
"""

FIT = """
import sys, deepshare
deepshare.fit(recipe=sys.argv[1], out=sys.argv[2])
"""


class Jobs:
    """Real jobs, run from one checkout in one folder."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        (folder / "watch").mkdir()
        (folder / "watch" / "sitecustomize.py").write_text(WATCH)
        self.recipe = folder / "short.toml"
        text = next(root.glob("src/deepshare/training/**/recipes/digits.toml")).read_text()
        self.recipe.write_text(re.sub(r"epochs = \d+", "epochs = 1", text))

    def way(self, name: str) -> dict[str, set[str]]:
        """Run a job and return the files on its way, by process."""
        notes = self.folder / f"{name}.txt"
        self.environment = os.environ | {
            "WAY": str(notes),
            "PYTHONPATH": f"{self.folder / 'watch'}:{self.root / 'src'}",
            "OMP_NUM_THREADS": "1",
        }
        getattr(self, name)()
        files = defaultdict(set)
        for line in notes.read_text().splitlines():
            process, file = line.split()
            files[process].add(file)
        return files

    def fit(self) -> None:
        """Train with one epoch in each phase."""
        self._run("-c", FIT, str(self.recipe), str(self.folder / "run"))

    def private_run(self) -> None:
        """Classify one image between three processes."""
        self._deepshare("private", "run", self.folder / "run", "-e", "gateshare", "--samples", "1")

    def serve_and_ask(self) -> None:
        """Classify one image with a server, TLS and a pool; keys and pool are made off the record."""
        run, picture = self.folder / "run", self.folder / "digit.png"
        unwatched = {key: value for key, value in self.environment.items() if key != "WAY"}
        save = "from PIL import Image; import sys; Image.new('L', (8, 8), 9).save(sys.argv[1])"
        subprocess.run([sys.executable, "-c", save, str(picture)], check=True)
        for verb in (
            ["keys", self.folder / "keys", "--host", "localhost"],
            ["outline", run, self.folder / "net.json"],
            ["deal", self.folder / "net.json", self.folder / "pools", "--images", "2"],
        ):
            self._deepshare("private", *verb, env=unwatched)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        tls, pools = self.folder / "keys", self.folder / "pools"
        serve = ["serve", run, "-e", "gateshare", "--port", port, "--pool", pools / "server", "--tls", tls / "server"]
        server = subprocess.Popen(self._command("private", *serve), env=self.environment, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            ask = ["ask", picture, "--server", f"localhost:{port}", "--pool", pools / "client", "--tls", tls / "client"]
            self._deepshare("private", *ask)
        finally:
            server.terminate()
            server.wait()

    def compare(self) -> None:
        """Run one method of a study and its teacher."""
        out, work = self.folder / "results", self.folder / "work"
        self._deepshare("compare", "--study", "digits", "--only", "deepshare", "--out", out, "--work", work)

    def _command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "deepshare", *map(str, words)]

    def _deepshare(self, *words: object, env: dict[str, str] | None = None) -> None:
        self._check(self._command(*words), env or self.environment)

    def _run(self, *words: str) -> None:
        self._check([sys.executable, *words], self.environment)

    def _check(self, command: list[str], env: dict[str, str]) -> None:
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=self.folder, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _wait_for(port: int) -> None:
    for _ in range(3000):  # five minutes, for a busy machine
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


def static(root: Path) -> dict[str, list[str]]:
    """What can be read off the files: each yardstick with what counts for it."""
    package = root / "src" / "deepshare"
    files = sorted(package.rglob("*.py"))
    trees = {file: ast.parse(file.read_text()) for file in files}
    sizes = Counter(file.parent for file in files)
    # One file for each method, data set or verb is the point of these rooms.
    rooms = {folder: size for folder, size in sizes.items() if folder.name not in ("methods", "data", "cli")}
    largest = max(rooms, key=lambda folder: rooms[folder])
    places = defaultdict(set)
    for file, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(str(file.relative_to(package)))
    asked = [file for file, tree in trees.items() if QUESTION.match(ast.get_docstring(tree) or "")]
    gateshare = [
        file for file in files if "gateshare" in file.relative_to(package).parts and not str(file).endswith(COMPILERS)
    ]
    return {
        "largest flat room": [str(file.relative_to(package)) for file in files if file.parent == largest],
        "classes in several files": [f"{name}: {', '.join(sorted(at))}" for name, at in places.items() if len(at) > 1],
        "docstrings that begin with a question word": [str(file.relative_to(package)) for file in asked],
        "files that name the gate's step": [
            str(file.relative_to(package)) for file in gateshare if GATE.search(file.read_text())
        ],
        "files in all": [str(file.relative_to(package)) for file in files],
    }


def main() -> None:
    """Print one line for each yardstick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--static", action="store_true", help="only what can be read off the files")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout to measure")
    parser.add_argument("--list", action="store_true", help="name what was counted")
    asked = parser.parse_args()

    def show(name: str, counted: list[str]) -> None:
        print(f"{len(counted):4}  {name}", flush=True)
        if asked.list and name != "files in all":
            print("".join(f"        {line}\n" for line in counted), end="", flush=True)

    for name, counted in static(asked.root.resolve()).items():
        show(name, counted)
    if asked.static:
        return
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(asked.root.resolve(), Path(folder))
        for name in ("fit", "private_run", "serve_and_ask", "compare"):
            ways, job = jobs.way(name), name.replace("_", " ")
            show(f"files on the way of {job}, all processes", sorted({file for way in ways.values() for file in way}))
            show(f"files on the way of {job}, busiest process", max(map(sorted, ways.values()), key=len))


if __name__ == "__main__":
    main()
