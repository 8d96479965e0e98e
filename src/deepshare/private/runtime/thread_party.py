"""One party in a thread of this process, watched as `deepshare.private.runtime.subprocess_party.Worker` is."""

import threading
from queue import Queue

from deepshare.errors import DeepShareError, reason
from deepshare.private.runtime.engine import Session, Task
from deepshare.private.runtime.subprocess_party import Event


class Thread:
    """A running session; what it tells goes to a queue, as what a worker tells does."""

    def __init__(self, session: Session, task: Task, events: "Queue[Event]") -> None:
        self._session, self._task, self._events = session, task, events
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._session.cut()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._tell("done", self._session.answer(self._task, lambda: self._tell("ready", None)))
        except DeepShareError as error:
            self._tell("refused", str(error))
        except ConnectionError as error:
            self._tell("lost", f"{type(error).__name__}: {reason(error)}")
        except Exception as error:
            self._tell("failed", f"{type(error).__name__}: {reason(error)}")
        finally:
            self._session.close()  # once the reason is told: the other party ends with it, and must not be heard first

    def _tell(self, kind: str, value: object) -> None:
        self._events.put((self._task.role, kind, value))
