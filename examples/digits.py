"""Demo on the bundled digits, in a minute or two: plan, share, train, compare, run privately, report.

    python examples/digits.py [FOLDER]

A small ResNet learns the 1,797 handwritten digits twice: with all its ReLUs, and with 5% of the gates, shared across
channels and layers and trained with the paper's schedule. The shared network then classifies four digits privately,
between separate processes for server, client and dealer. FOLDER (default: runs/demo) holds the run folders and a report
on both networks. An interrupted demo resumes.
"""

import sys
from pathlib import Path

import deepshare
from deepshare.private.api import sample_images
from deepshare.private.cost import cost_table
from deepshare.study import report
from deepshare.study.report.private_cost import keep_measured
from deepshare.training.recipe.files import load_recipe
from deepshare.training.reporter import make_reporter


def main(folder: Path) -> None:
    """Train both networks and compare their accuracy and gates."""
    reporter = make_reporter()
    score = {}
    for name, chosen in (("plain", "digits-plain"), ("shared", "digits")):
        recipe = load_recipe(chosen)
        out = folder / name
        print(f"\n{name}: {recipe.about}")
        model = deepshare.fit(recipe=recipe, out=out, resume=out.exists(), reporter=reporter)
        gates = deepshare.count_gates(model, (1, 8, 8))
        score[name] = (deepshare.evaluate(model, "digits"), gates)
    reporter.end()
    print("\nHow the gates are shared:\n")
    print(deepshare.Plan.load(folder / "shared" / "plan.json"))
    print("\nOn the test images:\n")
    for name, (result, gates) in score.items():
        print(f"  {name:8} {result.accuracy:7.2%} of {result.n} digits right with {gates:>6,} gates")
    ask_privately(folder / "shared")
    print("\nThe shared network had a teacher and more epochs; on 300 images a digit or two is chance.")
    print(f"Both networks are in {folder}; deepshare.load('{folder / 'shared'}') gives the shared one.")
    report.write([folder / "shared", folder / "plain"], folder / "report.html")
    print(f"The report on them is {folder / 'report.html'}: open it in a browser.")


def ask_privately(run: Path) -> None:
    """Classify four digits privately: one process has the weights, one the images, one deals randomness."""
    names, images = sample_images(run, 4, None)
    print("\nFour of them privately, between three processes on this machine, with the gate-sharing protocol:\n")
    result = deepshare.private.infer(deepshare.load(run), images, engine="gateshare")
    keep_measured(run, result.cost)
    for name, digit in zip(names, result.logits.argmax(1).tolist(), strict=True):
        print(f"  {name}: {digit}")
    print(f"\n{cost_table(result.cost)}")
    print(f"The private logits are within {result.cost.error:.0e} of the plain network's.")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/demo"))
