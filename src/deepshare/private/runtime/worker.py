"""One party's process: `python -m deepshare.private.runtime.worker` reads a task from its parent and answers it."""

import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

from deepshare.private.runtime.engine import Outcome, Task, find_engine
from deepshare.private.runtime.party import attempt


def main() -> None:
    """Do the parent's task; everything that libraries print goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    name, task = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answers)
        answers.flush()

    attempt(lambda ready: _run(name, task, ready), tell)
    os._exit(0)  # libraries that wait for their peers at exit would wait for ever


def _run(name: str, task: Task, ready: Callable[[], None]) -> Outcome:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return find_engine(name).run(task, ready)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
