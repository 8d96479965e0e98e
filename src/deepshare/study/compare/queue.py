"""All runs of a study one after the other, without those that were finished before."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from deepshare.errors import CheckpointError
from deepshare.study.compare import outcome as outcomes_of
from deepshare.study.compare.definition import TEACHER, TEACHERS, Job, Study
from deepshare.study.compare.jobs import jobs
from deepshare.study.compare.locks import is_held, lock_of
from deepshare.study.compare.outcome import Outcome, Outcomes, check_images
from deepshare.study.compare.recipes import checksum, recipe_of
from deepshare.study.compare.run import Place, check_teacher, refusal, run, teacher_is_there
from deepshare.training.build import output_shape, plain_network
from deepshare.training.data_source import make_feed
from deepshare.training.reporter import Reporter
from deepshare.training.run.folder import RunFolder

State = Literal["finished", "refused", "running", "begun", "open"]
End = Literal["finished", "stopped", "elsewhere"]

STARTING = 10.0  # seconds to wait for a run that somebody only looks at


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        minutes: No run is started that would probably end later; None is no limit.
        runs: Runs that are done at most.
        methods: Run these only, and the teacher; empty is all.
    """

    minutes: float | None = None
    runs: int | None = None
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Queue:
    """The runs of a study.

    Attributes:
        study: The study.
        place: Where it is run.
    """

    study: Study
    place: Place

    @property
    def out(self) -> Path:
        """The folder of results."""
        return self.place.out

    def outcomes(self) -> dict[Job, Outcome]:
        """What there is so far; see `outcome.read_all`."""
        return outcomes_of.read_all(self.study, self.out)

    def run(self, limits: Limits, make_reporter: Callable[[], Reporter], tell: Callable[[Outcome], None]) -> End:
        """Run what is open, one after the other.

        Args:
            limits: When to stop.
            make_reporter: Makes who is told of a run while it goes on.
            tell: Is told of every outcome, which is already written.

        Returns:
            Whether all is done that the limits do not exclude, or the rest is being run by others.

        Raises:
            CheckpointError: Another queue is at work, a file is damaged or the teacher does not fit.
            DataError: The data is missing.
        """
        began, done = time.monotonic(), 0
        with self.alone():
            for early in self.look_ahead(self.open(self.outcomes(), limits), make_reporter()):
                tell(early)
                done += early.run is not None
            while job := self._next(limits):
                spent = (time.monotonic() - began) / 60
                late = limits.minutes is not None and spent + self.minutes(job, self.outcomes()) > limits.minutes
                if late or done == limits.runs:
                    return "stopped"
                if outcome := self.work_on(job, make_reporter()):
                    tell(outcome)
                    done += 1
        return "elsewhere" if self.open(self.outcomes(), limits) else "finished"

    def look_ahead(self, runs: Sequence[Job], reporter: Reporter) -> Iterator[Outcome]:
        """Do what needs no training: find or fetch all images, take a given teacher, refuse what methods cannot do.

        Args:
            runs: What is open.
            reporter: Is told of the teacher.

        Yields:
            Outcomes, which are already written.

        Raises:
            DataError: The data is missing or damaged, or the network does not take it.
            CheckpointError: Runs that are finished had other images.
        """
        for data in dict.fromkeys(part.data for part in self.study.passes) if runs else ():
            teacher = Job(TEACHER, data)
            recipe = recipe_of(self.study, teacher)
            feed = make_feed(None, recipe, self.place.data_dir, download=self.place.download)
            output_shape(plain_network(recipe, TEACHER), feed.input_size)
            check_images(data, self.outcomes(), feed.checksum)
            if self.place.teacher and (taken := self.work_on(teacher, reporter)):
                yield taken
            known = self.outcomes()
            methods = [job for job in runs if job.data == data and job.method not in TEACHERS]
            for job in (job for job in methods if job not in known):
                if outcome := refusal(self.study, job, feed.input_size, known):
                    outcomes_of.write(outcome, self.out)
                    yield outcome

    def open(self, known: Outcomes, limits: Limits) -> list[Job]:
        """What has no result yet, in its order."""
        every = jobs(self.study, known)
        wanted = [job for job in every if not limits.methods or job.method in limits.methods]
        teachers = {teacher for job in wanted for teacher in self.study.teachers_of(job)}
        return [job for job in every if job not in known and (job in wanted or job in teachers)]

    def _next(self, limits: Limits) -> Job | None:
        return next((job for job in self.open(self.outcomes(), limits) if not self.is_running(job)), None)

    def work_on(self, job: Job, reporter: Reporter) -> Outcome | None:
        """Do a run, or go on with it, and write its outcome; any number of processes may do so at the same time.

        Returns:
            The outcome; None if it was there before, or if another process is at it.
        """
        make_folder(self.out, "--out")
        make_folder(self.place.work, "--work")
        try:
            with lock_of(self.place.work, job).acquire(timeout=STARTING):
                return self._run(job, reporter)
        except Timeout:
            reporter.note(f"{job.name}: another process is at it")
            return None
        finally:
            reporter.end()

    def _run(self, job: Job, reporter: Reporter) -> Outcome | None:
        known = self.outcomes()
        again = job.method in TEACHERS and not teacher_is_there(job, self.place)
        if job in known and not again:
            return None
        every = jobs(self.study, known)
        number = f"{every.index(job) + 1} of {len(every)}, " if job in every else ""
        reporter.note(f"{job.name} ({number}about {self.minutes(job, known):.1f} min)")
        outcome = run(self.study, job, self.place, reporter)
        if job in known:
            return None
        outcomes_of.write(outcome, self.out)
        return outcome

    def _check_teacher(self) -> None:
        given = self.place.teacher and check_teacher(self.study, self.place.teacher)
        for outcome in self.outcomes().values():
            own = checksum(recipe_of(self.study, Job(TEACHER, outcome.data)))
            if outcome.teacher != (given or own):
                was = "one that the study trains" if outcome.teacher == own else "one that was given with --teacher"
                raise CheckpointError(
                    f"the results in {self.out} learned from {was}: use the same again, or give another --out"
                )

    def minutes(self, job: Job, known: Outcomes) -> float:
        """How long a run will take, as the longest one of its method, or else of any method, on the same images."""
        runs = [(o.method, o.run.seconds) for o in known.values() if o.run and o.data == job.data]
        alike = [seconds for method, seconds in runs if method == job.method] or [seconds for _, seconds in runs]
        return max(alike) / 60 if alike else self.study.data[job.data].minutes

    def states(self) -> Iterator[tuple[Job, State, Outcome | None]]:
        """Every run with what has become of it, in the order of the queue."""
        known = self.outcomes()
        for job in jobs(self.study, known):
            yield job, self._state(job, known), known.get(job)

    def _state(self, job: Job, known: Outcomes) -> State:
        if job in known:
            return "refused" if known[job].refused else "finished"
        if self.is_running(job):
            return "running"
        return "begun" if RunFolder(self.place.work / job.name).metrics.exists() else "open"

    def is_running(self, job: Job) -> bool:
        """Whether some process is at a run; after a kill nobody is."""
        return is_held(self.place.work, job)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one who starts runs, after a look at the teacher, with folders for runs and results.

        Raises:
            CheckpointError: Another queue is at work, a file is damaged or the teacher does not fit.
        """
        self._check_teacher()
        make_folder(self.out, "--out")
        make_folder(self.place.work, "--work")
        try:
            with FileLock(self.place.work / "queue.lock").acquire(timeout=0):
                yield
        except Timeout:
            raise CheckpointError(
                f"another queue is at work in {self.place.work}: wait for it, or give another --work"
            ) from None


def make_folder(folder: Path, flag: str) -> None:
    """Make a folder unless it is there.

    Raises:
        CheckpointError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot make the folder {folder}: {error.strerror}: give another {flag}") from None
