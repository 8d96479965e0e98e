"""Accuracy gained and lost by phase: on validation images, over the seeds that did not diverge."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from deepshare.methods.deepshare import DeepShareOptions
from deepshare.study.compare.outcome import Outcomes, RunOutcome, best_epoch
from deepshare.study.compare.plots import main_budget
from deepshare.study.compare.study_file import TEACHER, TEACHERS, Job, Study, recipe_of
from deepshare.study.compare.tables import MethodRow, Table, best_validation, rows
from deepshare.training.recipe.schema import PHASES

Curve = Mapping[str, Sequence[float]]
WORTH = 1.0  # points below its best from which the end of a run is worth a sentence


def phases(study: Study, outcomes: Outcomes, data: str) -> Table | None:
    """Validation accuracy at the start and after each phase, at the main budget; None without curves."""
    shown = _shown(study, outcomes, data)
    if not shown:
        return None
    curves = [(row, *mean_curve(row)) for row in shown]
    names = [name for name in PHASES if any(name in curve for _, curve, _ in curves)]
    lines: list[tuple[str, ...]] = []
    for row, curve, seeds in curves:
        before = _before(row, outcomes, data)
        cells = ["" if before is None else f"{before:.2f}"]
        for name in names:
            if name not in curve:
                cells.append("")
                continue
            change = "" if before is None else f" ({curve[name][-1] - before:+.2f})"
            before = curve[name][-1]
            cells.append(f"{before:.2f}{change}, {len(curve[name])}")
        lines.append((row.title, *cells, _best(study, row), str(seeds)))
    header = ("accuracy (change), epochs", "start", *names, "best epoch", "seeds")
    title = f"Validation accuracy by phase at {main_budget(shown):,} gates"
    return Table(title, header, lines, "<" + ">" * (len(header) - 1))


def losses(study: Study, outcomes: Outcomes, data: str, folder: Path | None = None) -> list[str]:
    """Say where each method loses accuracy.

    Args:
        study: The study.
        outcomes: All outcomes so far.
        data: Name of the training images.
        folder: Folder with the results, whose run folders have the accuracy on training images.
    """
    return [said for row in _shown(study, outcomes, data) for said in _losses(study, row, folder)]


def mean_curve(row: MethodRow) -> tuple[Curve, int]:
    """Mean over the seeds that have curves of the same length as the first, and their number."""
    kept = row.steady if row.steady.runs else row
    curves = [outcome.curve for outcome in kept.outcomes if outcome.curve] or [
        outcome.curve for outcome in row.outcomes if outcome.curve
    ]
    alike = [curve for curve in curves if _lengths(curve) == _lengths(curves[0])]
    by_phase = {name: zip(*(curve[name] for curve in alike), strict=True) for name in alike[0]}
    return {name: [fmean(values) for values in epochs] for name, epochs in by_phase.items()}, len(alike)


def _lengths(curve: Curve) -> dict[str, int]:
    return {name: len(values) for name, values in curve.items()}


def _shown(study: Study, outcomes: Outcomes, data: str) -> list[MethodRow]:
    found = [row for row in rows(study, outcomes, data) if row.runs]
    at = main_budget(found)
    return [
        row
        for row in found
        if row.budget == at and row.method not in TEACHERS and any(outcome.curve for outcome in row.outcomes)
    ]


def _best(study: Study, row: MethodRow) -> str:
    """The best epoch of the last phase; with several seeds the mean of theirs."""
    kept = row.steady if row.steady.runs else row
    mean = best_validation(study, kept)
    found = best_epoch(study, kept.outcomes[0]) if len(kept.runs) == 1 else None
    return f"{found[1]:.2f}, {found[0]}" if found else str(mean or "")


def _before(row: MethodRow, outcomes: Outcomes, data: str) -> float | None:
    """Accuracy of the trained network that it starts from; None from scratch."""
    teacher = outcomes.get(Job(TEACHER, data))
    return teacher.run.validation if row.before and teacher and teacher.run else None


def _losses(study: Study, row: MethodRow, folder: Path | None) -> Iterator[str]:
    curve, _ = mean_curve(row)
    if "gelu" in curve and "switch" in curve:
        yield f"{row.title}: {_switched(study, row.outcomes[0], curve)}{_trained(row, folder)}"
        return
    # A search takes gates away: only what comes after it is of one network.
    kept = {name: values for name, values in curve.items() if name != "search"}
    every = [value for values in kept.values() for value in values]
    if not every or max(every) - every[-1] < WORTH:
        return
    best = max(every)
    at = every.index(best)
    low = min(every[at:])
    where = every.index(low, at)
    after = " after its search" if "search" in curve else ""
    fall = "" if where + 1 == len(every) else f" It falls to {low:.2f} in epoch {where + 1}."
    fading = at < recipe_of(study, row.outcomes[0].job).section(DeepShareOptions).fade
    more = ", while its ReLUs still fade" if fading else ""
    yield (
        f"{row.title}: its best epoch{after} is {at + 1} of {len(every)}, with {best:.2f}{more}.{fall} "
        f"It ends {best - every[-1]:.2f} points below its best."
    )


def _switched(study: Study, outcome: RunOutcome, curve: Curve) -> str:
    """Accuracy lost between the end of the GELU phase and the end of training."""
    soft, switch = curve["gelu"][-1], curve["switch"]
    recipe = recipe_of(study, outcome.job).phases
    rates = [recipe["gelu"].end_lr if recipe["gelu"].schedule != "none" else recipe["gelu"].lr, recipe["switch"].lr]
    jump = f", in which the rate goes from {rates[0]:g} to {rates[1]:g}" if rates[0] != rates[1] else ""
    said = f"The GELU phase ends at {soft:.2f}. The switch {_moves(switch[-1] - soft)}"
    said += f" ({switch[0] - soft:+.2f} in its first epoch{jump})."
    if "finetune" not in curve:
        return said
    end = curve["finetune"][-1]
    side = "below" if end < soft else "above"
    return f"{said} The finetune {_moves(end - switch[-1])}, and ends {abs(end - soft):.2f} {side} the GELU phase."


def _moves(points: float) -> str:
    return f"{'loses' if points < 0 else 'gains'} {abs(points):.2f} points"


def _trained(row: MethodRow, folder: Path | None) -> str:
    """Accuracy on training images at the end of each phase, if the run folder is there."""
    file = folder / row.outcomes[0].job.name / "metrics.jsonl" if folder else None
    if file is None or not file.is_file():
        return ""
    last = {line["phase"]: line["accuracy"] for line in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    ends = ", ".join(f"{100 * accuracy:.1f}% after {phase}" for phase, accuracy in last.items())
    return f" On its training images, seed {row.outcomes[0].seed}: {ends}."
