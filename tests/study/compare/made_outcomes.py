"""Outcomes as runs would leave them, without the runs."""

from deepshare.study.compare.outcome import PrivateCost, RunOutcome
from deepshare.study.compare.study_file import TEACHER, Job, Study, checksum, recipe_of
from deepshare.training.catalog import Finished
from deepshare.training.recipe.files import differences, load_recipe


def finished(study: Study, job: Job, test: float, **changes: object) -> RunOutcome:
    """A run with a test accuracy, and a validation accuracy that is one point lower."""
    recipe = recipe_of(study, job)
    gates = job.budget or 1920
    run = Finished(
        recipe=study.base,
        overrides={key: new for key, (_, new) in differences(load_recipe(study.base), recipe).items()},
        seed=job.seed,
        score="accuracy",
        test=test,
        validation=test - 1,
        gates=gates,
        neurons=1920,
        epochs={"finetune": study.epochs},
        seconds=90.0,
        environment={},
        command="deepshare compare",
        date="2026-01-01",
    )
    outcome = refused(study, job, "").model_copy(update={"refused": None, "run": run})
    private = PrivateCost(engine=study.engine, sent=1000 * gates, rounds=7)
    return outcome.model_copy(update={"private": private, **changes})


def refused(study: Study, job: Job, reason: str) -> RunOutcome:
    """A method that cannot do it."""
    return RunOutcome(
        study=study.name,
        method=job.method,
        data=job.data,
        budget=job.budget,
        seed=job.seed,
        definition=checksum(recipe_of(study, job)),
        teacher=checksum(recipe_of(study, Job(TEACHER, job.data))),
        refused=reason,
    )
