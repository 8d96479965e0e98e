"""Parts about planning and training."""

from dev.measured.text import Figures, say, seconds, table

GATES = {"soft": "soft gates", "mixed": "the switch, both kinds", "hard": "hard gates"}


def planning(figures: Figures) -> str:
    """Time of a plan."""
    found = figures["planning"]["seconds"]
    first, second, plain = (seconds(found[key]) for key in ("first plan", "second plan", "one plain inference"))
    return say(
        f"""The first plan of a ResNet-50 at 224x224 in a process takes {first}, tracing included, the second {second}.
        One plain inference takes {plain}."""
    )


def step(figures: Figures) -> str:
    """A step with shared gates, relative to nn.ReLU."""
    found = figures["training-step"]
    lines = [
        [f"{row['mode']}, {GATES[row['phase']]}", f"{row['time']:.2f}", f"{row['memory']:.2f}"] for row in found["rows"]
    ]
    said = f"""A step of ResNet-18 with {found["gates"]:,} gates, batch {found["batch"]}, relative to the same network
        with nn.ReLU:"""
    return f"{say(said)}\n\n{table(['', 'time', 'peak memory'], lines)}"


def loop(figures: Figures) -> str:
    """A step of a recipe, relative to a bare loop."""
    found = figures["training-loop"]
    taught = {row["phase"]: row["wall"] for row in found["rows"] if row["teacher"]}
    return say(
        f"""A step of `cifar100-small` takes {found["plain"]:.2f} (plain), {taught["gelu"]:.2f} (soft gates),
        {taught["switch"]:.2f} (switch) and {taught["finetune"]:.2f} (hard gates) of the time of a bare PyTorch loop on
        the plain network, both with a teacher where the phase has one; over the recipe's epochs
        {found["recipe"]:.2f}."""
    )


def feeding(figures: Figures) -> str:
    """Data loading."""
    found = figures["feeding"]
    return say(
        f"""Data loading takes {100 * found["share"]:.2f}% of a training step ({found["feeding_ms"]:.1f} ms of
        {found["step_ms"]:.0f} ms)."""
    )
