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
    before = f"""- Before the image: {seconds(first["offline_seconds"])}, {megabytes(first["dealer_to_client"])} from
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
    return [
        f"""- On {least["of_images"]} digits and a trained network, every engine gives the class of the plain network on
        {least["same_class"]} or more."""
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
    """The README's table of what else a reader could use."""
    rows = rows_of(figures, "gateshare")
    first, every, stock = (rows[name] for name in (FIRST, EVERY, STOCK))
    engines = {row["engine"]: row for row in figures.get("two-party", {"rows": []})["rows"]}
    page = "docs/measurements.md#without-a-dealer"

    def width_16(engine: str) -> str:
        if engine not in engines:
            return f"[at width 16]({page})"
        row = engines[engine]
        after = f", after {seconds(row['offline_seconds'])}" if row["offline_bytes"] else ""
        return f"[{seconds(row['online_seconds'])}{after}, at width 16]({page})"

    def online(row: Any) -> str:
        return f"{seconds(row['seconds'])}, after {seconds(row['offline_seconds'])} of preprocessing"

    translates = "any CNN that [translates](docs/compatibility.md)"
    lines = [
        [f"DeepShare, `gateshare`, {first['gates']:,} gates", "a dealer that colludes with nobody", online(first)],
        ["the same, all ReLUs", "the same", online(every)],
        ["DeepShare, `gateshare-2pc`", "nobody", width_16("gateshare-2pc")],
        [STOCK, "the server, which deals the randomness", f"{seconds(stock['seconds'])}, its triples included"],
        ["SPU, CHEETAH", "nobody", width_16("spu-cheetah")],
        ["Concrete ML (FHE)", "nobody", "not run: it pins another torch"],
        ["LLAMA (EzPC), C++ research code", "a dealer", "not run: no Python package"],
    ]
    kinds = [
        translates,
        "the same",
        "the same",
        "built from its tensors; unmaintained",
        "JAX",
        "small, quantised",
        "ONNX",
    ]
    said = f"""Online, `gateshare` is {times(stock["seconds"] / first["seconds"])} times as fast as CrypTen on the same
        network and cores ([one run](docs/measurements.md#the-gate-sharing-protocol)). Rows marked width 16 used a
        smaller network; compare them with each other only."""
    if first.get("batch_all") and stock.get("batch_all"):
        said += f""" Including preprocessing, a batch of {first["batch"]} takes {seconds(first["batch_all"])} per image,
            against {seconds(stock["batch_all"])} with CrypTen."""
    shown = [[*line, kind] for line, kind in zip(lines, kinds, strict=True)]
    return f"{table(['', 'you trust', 'one image, online', 'networks'], shown, 4)}\n\n{say(said)}"
