"""Execution of a study: its runs in order, one after the other or by several processes, some selected by results."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from deepshare.errors import CheckpointError
from deepshare.study.compare import outcome as outcomes_of
from deepshare.study.compare.outcome import Outcomes, RunOutcome, check_images
from deepshare.study.compare.run import Workspace, check_teacher, refusal, run
from deepshare.study.compare.study_file import TEACHER, TEACHERS, Job, Pass, Selection, Study, checksum, recipe_of
from deepshare.training.build import output_shape, plain_network
from deepshare.training.data_source import make_data_source
from deepshare.training.reporter import Reporter
from deepshare.training.run.folder import RunFolder

RunState = Literal["finished", "refused", "running", "begun", "open"]
End = Literal["finished", "stopped", "elsewhere"]

STARTING = 10.0  # seconds to wait for a lock that another process only tests


@dataclass(frozen=True)
class Limits:
    """Limits of an execution.

    Attributes:
        minutes: Start no run that would probably end later than this; None is no limit.
        runs: Maximum number of runs.
        methods: Methods to run, besides their teachers; empty is all.
    """

    minutes: float | None = None
    runs: int | None = None
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runner:
    """Executes the runs of a study.

    Attributes:
        study: The study.
        workspace: Its folders and settings.
    """

    study: Study
    workspace: Workspace

    @property
    def out(self) -> Path:
        """Folder of the results."""
        return self.workspace.out

    def outcomes(self) -> dict[Job, RunOutcome]:
        """All outcomes so far; see `outcome.read_all`."""
        return outcomes_of.read_all(self.study, self.out)

    def run(
        self, limits: Limits, make_reporter: Callable[[], Reporter], on_outcome: Callable[[RunOutcome], None]
    ) -> End:
        """Do all open runs, one after the other.

        Args:
            limits: Limits of the execution.
            make_reporter: Creates the reporter of a run.
            on_outcome: Called with every outcome, after it is written.

        Returns:
            Whether all runs within the limits are finished, a limit was reached, or other processes do the rest.

        Raises:
            CheckpointError: Another runner is active, a file is damaged, or the teacher does not fit.
            DataError: The data set is missing.
        """
        began, done = time.monotonic(), 0
        with self.exclusive():
            for early in self.look_ahead(self.open(self.outcomes(), limits), make_reporter()):
                on_outcome(early)
                done += early.run is not None
            while job := self._next(limits):
                spent = (time.monotonic() - began) / 60
                late = limits.minutes is not None and spent + self.minutes(job, self.outcomes()) > limits.minutes
                if late or done == limits.runs:
                    return "stopped"
                if outcome := self.work_on(job, make_reporter()):
                    on_outcome(outcome)
                    done += 1
        return "elsewhere" if self.open(self.outcomes(), limits) else "finished"

    def look_ahead(self, runs: Sequence[Job], reporter: Reporter) -> Iterator[RunOutcome]:
        """Do all that needs no training: check or download all images, take a given teacher, find refusals.

        Args:
            runs: Open runs.
            reporter: Reporter of the teacher.

        Yields:
            Outcomes, after they are written.

        Raises:
            DataError: A data set is missing or damaged, or does not fit the network.
            CheckpointError: Finished runs had other images.
        """
        for data in dict.fromkeys(part.data for part in self.study.passes) if runs else ():
            teacher = Job(TEACHER, data)
            recipe = recipe_of(self.study, teacher)
            feed = make_data_source(None, recipe, self.workspace.data_dir, download=self.workspace.download)
            output_shape(plain_network(recipe, TEACHER), feed.input_size)
            check_images(data, self.outcomes(), feed.checksum)
            if self.workspace.teacher and (taken := self.work_on(teacher, reporter)):
                yield taken
            known = self.outcomes()
            methods = [job for job in runs if job.data == data and job.method not in TEACHERS]
            for job in (job for job in methods if job not in known):
                if outcome := refusal(self.study, job, feed.input_size, known):
                    outcomes_of.write(outcome, self.out)
                    yield outcome

    def open(self, known: Outcomes, limits: Limits) -> list[Job]:
        """Runs without an outcome, in order."""
        every = jobs(self.study, known)
        wanted = [job for job in every if not limits.methods or job.method in limits.methods]
        teachers = {teacher for job in wanted for teacher in self.study.teachers_of(job)}
        return [job for job in every if job not in known and (job in wanted or job in teachers)]

    def _next(self, limits: Limits) -> Job | None:
        still = self.open(self.outcomes(), limits)
        return next((job for job in still if not self.workspace.is_running(job)), None)

    def work_on(self, job: Job, reporter: Reporter) -> RunOutcome | None:
        """Do or resume a run, and write its outcome; any number of processes may do so at the same time.

        Returns:
            The outcome; None if it existed before, or if another process is doing the run.
        """
        make_folder(self.out, "--out")
        make_folder(self.workspace.work, "--work")
        try:
            with self.workspace.lock(job).acquire(timeout=STARTING):
                return self._run(job, reporter)
        except Timeout:
            reporter.note(f"{job.name}: another process is doing this run")
            return None
        finally:
            reporter.end()

    def _run(self, job: Job, reporter: Reporter) -> RunOutcome | None:
        known = self.outcomes()
        again = job.method in TEACHERS and not self.workspace.has_teacher(job)
        if job in known and not again:
            return None
        every = jobs(self.study, known)
        number = f"{every.index(job) + 1} of {len(every)}, " if job in every else ""
        reporter.note(f"{job.name} ({number}about {self.minutes(job, known):.1f} min)")
        outcome = run(self.study, job, self.workspace, reporter)
        if job in known:
            return None
        outcomes_of.write(outcome, self.out)
        return outcome

    def _check_teacher(self) -> None:
        given = self.workspace.teacher and check_teacher(self.study, self.workspace.teacher)
        for outcome in self.outcomes().values():
            own = checksum(recipe_of(self.study, Job(TEACHER, outcome.data)))
            if outcome.teacher != (given or own):
                was = "one that the study trains" if outcome.teacher == own else "one that was given with --teacher"
                raise CheckpointError(
                    f"the results in {self.out} learned from {was}: use the same again, or give another --out"
                )

    def minutes(self, job: Job, known: Outcomes) -> float:
        """Estimated minutes of a run: the longest one of its method, or else of any method, on the same images."""
        runs = [(o.method, o.run.seconds) for o in known.values() if o.run and o.data == job.data]
        alike = [seconds for method, seconds in runs if method == job.method] or [seconds for _, seconds in runs]
        return max(alike) / 60 if alike else self.study.data[job.data].minutes

    def states(self) -> Iterator[tuple[Job, RunState, RunOutcome | None]]:
        """All runs in order, with their states and outcomes."""
        known = self.outcomes()
        for job in jobs(self.study, known):
            yield job, self._state(job, known), known.get(job)

    def _state(self, job: Job, known: Outcomes) -> RunState:
        if job in known:
            return "refused" if known[job].refused else "finished"
        if self.workspace.is_running(job):
            return "running"
        return "begun" if RunFolder(self.workspace.work / job.name).metrics.exists() else "open"

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Check the teacher, create the folders, and hold the lock of the only runner that starts runs.

        Raises:
            CheckpointError: Another runner is active, a file is damaged, or the teacher does not fit.
        """
        self._check_teacher()
        make_folder(self.out, "--out")
        make_folder(self.workspace.work, "--work")
        try:
            with FileLock(self.workspace.work / "queue.lock").acquire(timeout=0):
                yield
        except Timeout:
            raise CheckpointError(
                f"another deepshare compare is running in {self.workspace.work}: wait for it, or give another --work"
            ) from None


def make_folder(folder: Path, flag: str) -> None:
    """Create a folder if it is missing.

    Raises:
        CheckpointError: It cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot create the folder {folder}: {error.strerror}: give another {flag}") from None


def jobs(study: Study, outcomes: Outcomes) -> list[Job]:
    """All runs of a study in order, teachers before the runs that depend on them.

    Runs of methods that are selected by results are included as soon as these results exist.
    """
    found: dict[Job, None] = {}
    for part in study.passes:
        for job in (job for job in study.jobs_of(part) if _is_selected(study, part, job, outcomes)):
            found |= dict.fromkeys([*study.teachers_of(job), job])
    return list(found)


def kinds(study: Study) -> list[Job]:
    """One run of every method at every budget that a pass may have."""
    found: dict[tuple[str, int | None], Job] = {}
    for job in (job for part in study.passes for job in study.jobs_of(part)):
        found.setdefault((job.method, job.budget), job)
    return list(found.values())


def undecided(study: Study, outcomes: Outcomes) -> list[Pass]:
    """Passes whose methods cannot be selected yet."""
    return [
        part
        for part in study.passes
        if part.choose and any(_ranked(study, part, b, part.choose.data, outcomes) is None for b in part.budgets)
    ]


def _is_selected(study: Study, part: Pass, job: Job, outcomes: Outcomes) -> bool:
    if part.choose is None:
        return True
    ranked = _ranked(study, part, job.budget, part.choose.data, outcomes)
    return ranked is not None and job.method in select(part.choose, ranked)


def _ranked(study: Study, part: Pass, budget: int | None, data: str, outcomes: Outcomes) -> dict[str, float] | None:
    """Validation accuracy of the methods of a pass, best first; None until all have a result."""
    scores = {}
    for method in part.methods:
        outcome = outcomes.get(Job(method, data, budget if study.has_budget(method) else None))
        if outcome is None:
            return None
        if outcome.run:
            scores[method] = outcome.run.validation
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def select(selection: Selection, ranked: dict[str, float]) -> set[str]:
    """Select among methods in the order of their rank.

    >>> scores = {"a": 60.0, "b": 55.0, "c": 54.5, "d": 50.0}
    >>> sorted(select(Selection(by="closest", count=1, data="few"), scores))
    ['b', 'c']
    """
    if selection.by == "leaders":
        return set(list(ranked)[: selection.count])
    pairs = sorted(pairwise(ranked), key=lambda pair: ranked[pair[0]] - ranked[pair[1]])
    return {method for pair in pairs[: selection.count] for method in pair}
