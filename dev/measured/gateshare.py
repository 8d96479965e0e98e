"""Parts about one inference on gateshare, from records of benchmarks/gateshare.py and benchmarks/ring.py."""

from collections.abc import Iterator
from typing import Any

from dev.measured.text import Figures, megabytes, say, seconds, table, times

FIRST, EVERY, STOCK = "gateshare", "gateshare, all ReLUs", "CrypTen as installed"
ROWS = {
    FIRST: "gateshare, {gates:,} gates",
    EVERY: "gateshare, all ReLUs",
    "gateshare, with squares": "gateshare, a square next to every gate",
    "engine crypten": "engine crypten, {gates:,} gates",
    STOCK: STOCK,
}
LINKS = {"gateshare-lan": "LAN, 1 Gbit/s and 0.5 ms", "gateshare-wan": "WAN, 100 Mbit/s and 40 ms"}
# Figures that no record here holds, before the image and online, and where they are from.
LLAMA, CONCRETE = ("13 s", "3.6 s"), ("", "40 s, 128 cores")
AUTHORS = "https://github.com/zama-ai/concrete-ml/tree/main/use_case_examples/cifar/cifar_brevitas_training"
ELSEWHERE = f"""LLAMA (commit f24bf3e, 40 bits) was timed once on two quiet cores with AVX-512, and no record is kept
    here. Concrete ML was not run here: its authors [published]({AUTHORS}) this for a ternary VGG on CIFAR-10."""
LARGER = {"wrn22-8": "WRN-22-8 at 32x32", "resnet18-64": "ResNet-18 at 64x64"}


def rows_of(figures: Figures, name: str) -> dict[str, Any]:
    """Rows of a record by name."""
    return {row["name"]: row for row in figures[name]["rows"]}


def beside(row: Any, first: Any) -> str:
    """Time of a row, and its ratio to the first if it is longer."""
    if row is None:
        return ""
    ratio = row["seconds"] / first["seconds"]
    longer = f", {times(ratio)} times as long" if ratio > 1.05 else ""
    return f"{seconds(row['seconds'])}{longer}{' (computed)' if row.get('computed') else ''}"


def protocol(figures: Figures) -> str:
    """Gateshare next to its peers, with AVX-512 and without."""
    names = [name for name in ("gateshare", "gateshare-avx2") if name in figures]
    columns = {figures[name]["capability"]: rows_of(figures, name) for name in names}
    lines = []
    for name, words in ROWS.items():
        there = [rows[name] for rows in columns.values() if name in rows]
        if there:
            cells = [beside(rows.get(name), rows[FIRST]) for rows in columns.values()]
            lines.append([words.format(gates=there[0]["gates"]), *cells])
    rows = rows_of(figures, "gateshare")
    first, less = rows[FIRST], ""
    took = f", {seconds(first['session_seconds'])}" if first.get("session_seconds") else ""
    if EVERY in rows:
        ratio = rows[EVERY]["dealer_to_client"] / first["dealer_to_client"]
        less = f" ({times(ratio)} times less than with all ReLUs)"
    online = f"""- Online it takes {first["seconds"] / first["convolutions"]:.2f} times as long as the server's
        convolutions alone, {first["rounds"]} round trips and {megabytes(first["online_bytes"])}."""
    before = f"""- Before the image: {seconds(first["offline_seconds"])}, the dealer's time for the lot included,
        {megabytes(first["dealer_to_client"])} from
        the dealer to the client{less}, {megabytes(first["dealer_to_server"])} to the server and
        {megabytes(first["ahead"])} from the client to the server. Once per session: {megabytes(first["session"])} of
        masked weights to the client{took}."""
    said = [online, before, *_together(columns), *_fewer_bits(figures, rows), *_agreement(columns)]
    return "\n".join([table(["", *columns], lines), "", *map(say, said)])


def _together(columns: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Times of images that go together, before and online, beside CrypTen."""
    for capability, rows in columns.items():
        first, stock = rows[FIRST], rows.get(STOCK, {})
        if not first.get("batch_all"):
            continue
        beside_stock = ""
        if stock.get("batch_all"):
            ratio = stock["batch_all"] / first["batch_all"]
            beside_stock = f"; CrypTen takes {seconds(stock['batch_all'])}, {times(ratio)} times as long"
        yield f"""- {first["batch"]} images together, each with {capability}: {seconds(first["batch_before"])} before
            the images and {seconds(first["batch_seconds"])} online, {seconds(first["batch_all"])} in
            all{beside_stock}."""


def _fewer_bits(figures: Figures, rows: dict[str, Any]) -> Iterator[str]:
    """Comparisons of calibrated bits."""
    if "gateshare-bits" not in figures:
        return
    few = rows_of(figures, "gateshare-bits")
    first, every = few[FIRST], ""
    if EVERY in few:
        keys = [megabytes(found[EVERY]["dealer_to_client"]) for found in (few, rows) if EVERY in found]
        every = f" With all ReLUs: {seconds(few[EVERY]['seconds'])}, and {' instead of '.join(keys)} to the client."
    yield f"""- With comparisons of calibrated bits (`--comparison-bits calibrated`): {seconds(first["seconds"])}
        online, {seconds(first["offline_seconds"])} before the image.{every}"""


def _agreement(columns: dict[str, dict[str, Any]]) -> list[str]:
    counted = [row for rows in columns.values() for row in rows.values() if row.get("of_images")]
    if not counted:
        return []
    least = min(counted, key=lambda row: row["same_class"] / row["of_images"])
    share = f"{100 * least['same_class'] / least['of_images']:.0f}%"
    every = "all" if least["same_class"] == least["of_images"] else f"at least {least['same_class']} of"
    flips = [row for row in counted if row.get("of_gates")]
    gates = ""
    if flips:
        most = max(flips, key=lambda row: row["flipped"] / row["of_gates"])
        gates = f""" Rounding on gateshare flips {most["flipped"]} of {most["of_gates"]:,} gates, counted by the same
            arithmetic in the clear."""
    return [
        f"""- On a trained network, every engine gives {every} {least["of_images"]} test digits ({share}) the class that
        the network gives them in the clear.{gates}"""
    ]


def links(figures: Figures) -> str:
    """The same network over links."""
    lines = []
    for name, words in LINKS.items():
        if name in figures:
            rows = rows_of(figures, name)
            lines.append([words, *(beside(rows.get(row), rows[FIRST]) for row in (FIRST, EVERY, STOCK))])
    return table(["", "gateshare", "all ReLUs", STOCK], lines)


def larger(figures: Figures) -> str:
    """Larger networks than ResNet-18 at 32x32."""
    lines = []
    for name, words in LARGER.items():
        if name in figures:
            rows = rows_of(figures, name)
            first = rows[FIRST]
            cells = [f"{first['gates']:,}", seconds(first["seconds"]), seconds(first["offline_seconds"])]
            lines.append([words, *cells, beside(rows[EVERY], first)])
    return table(["network", "gates", "online", "before the image", "online with all ReLUs"], lines)


def ring(figures: Figures) -> str:
    """Products and comparisons."""
    found = figures["ring"]
    dealt, evaluated = (f"{found[key] / 1e3:,.0f} thousand" for key in ("dealt_gates_s", "evaluated_gates_s"))
    return say(
        f"""On {found["threads"]} threads the convolutions of ResNet-18 run at {found["online_gmac_s"]:.1f} billion
        products a second online and {found["offline_gmac_s"]:.1f} before the image, where torch multiplies int64 at
        {found["int64_gmac_s"]:.1f}. A party deals {dealt} comparisons a second, and evaluates {evaluated}."""
    )


def alternatives(figures: Figures) -> str:
    """The README's table of what else a reader could use: one network in every row, unless the row says otherwise."""
    rows = rows_of(figures, "gateshare")
    first, every, stock = (rows[name] for name in (FIRST, EVERY, STOCK))
    engines = {row["engine"]: row for row in figures.get("two-party-resnet18", {"rows": []})["rows"]}

    def times_of(engine: str) -> list[str]:
        if engine not in engines:
            return ["", "not measured yet"]
        row = engines[engine]
        return [seconds(row["offline_seconds"]) if row["offline_bytes"] else "none", seconds(row["online_seconds"])]

    few, dealer, torch = f"{first['gates']:,}", "a dealer who works with neither party", "PyTorch CNNs"
    lines = [
        ["DeepShare, `gateshare`", few, dealer, *_both(first), f"{torch} ([which](docs/compatibility.md))"],
        ["DeepShare, `gateshare`", "all", dealer, *_both(every), torch],
        ["DeepShare, `gateshare-2pc`", few, "none", *times_of("gateshare-2pc"), torch],
        [STOCK, few, "the server, who could read the image", "included", seconds(stock["seconds"]), "rewritten for it"],
        ["SPU with Cheetah", few, "none", *times_of("spu-cheetah"), "JAX; CNNs from PyTorch through DeepShare"],
        ["LLAMA (EzPC), measured elsewhere", "all", "a dealer", *LLAMA, "ONNX; C++ research code"],
        ["Concrete ML, published", "other network", "none", *CONCRETE, "quantised PyTorch networks"],
    ]
    header = ["", "gates", "trusted party", "before the image", "from image to answer", "networks"]
    said = f"""Online, `gateshare` is {times(stock["seconds"] / first["seconds"])} times as fast as CrypTen on the same
        network and cores ([measurements](docs/measurements.md#the-gate-sharing-protocol))."""
    if first.get("batch_all") and stock.get("batch_all"):
        said += f""" With preprocessing, an image in a batch of {first["batch"]} takes {seconds(first["batch_all"])},
            against {seconds(stock["batch_all"])} with CrypTen."""
    return "\n\n".join([table(header, lines, len(header)), say(f"{said} {ELSEWHERE}")])


def _both(row: Any) -> list[str]:
    return [seconds(row["offline_seconds"]), seconds(row["seconds"])]
