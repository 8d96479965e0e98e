"""One party's process: `python -m deepshare.private.runtime.worker` reads a task from its parent and answers it."""

import os
import pickle
import sys
import threading
import traceback
from typing import Any, BinaryIO

from deepshare.errors import DeepShareError, reason
from deepshare.private.runtime.engine import Task, find_engine


def main() -> None:
    """Do what the parent asks; everything that libraries print goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    name, task = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _answer(answers, "done", _run(name, task, answers))
    except DeepShareError as error:
        _answer(answers, "refused", str(error))
    except ConnectionError as error:
        _answer(answers, "lost", f"{type(error).__name__}: {reason(error)}")
    except Exception as error:
        traceback.print_exc()
        _answer(answers, "failed", f"{type(error).__name__}: {reason(error)}")
    os._exit(0)  # libraries that wait for their peers at exit would wait for ever


def _run(name: str, task: Task, answers: BinaryIO) -> Any:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return find_engine(name).run(task, lambda: _answer(answers, "ready", None))


def _answer(answers: BinaryIO, kind: str, value: Any) -> None:
    pickle.dump((kind, value), answers)
    answers.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
