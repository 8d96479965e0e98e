"""Parts about private inference with other engines, other networks, and many clients."""

from typing import Any

from dev.measured.text import Figures, megabytes, say, seconds, table, times

SETUPS = {
    "resnet18": "ResNet-18 at 32x32",
    "wrn22-8": "WRN-22-8 at 32x32",
    "tiny-resnet18": "ResNet-18 at 64x64",
}
ENGINES = ("crypten", "gateshare")
RATIOS = ("online", "rounds", "x activations", "x time in all", "x bytes of activations", "x all bytes", "paper")
NETWORKS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "vgg16_bn": "VGG-16"}
TRUST = {
    "gateshare": "a dealer that colludes with neither",
    "gateshare-2pc": "nobody",
    "spu-cheetah": "nobody",
    "crypten": "the server, or a third party",
    "spu-semi2k": "the server",
}
POOLINGS = {"exact": "exact", "shared": "shared", "avg": "average", "all": "exact"}


def latency(figures: Figures) -> str:
    """The paper's latency table on two engines, and over links."""
    parts = []
    for engine in ENGINES:
        names = [f"latency-{engine}-{setup}" for setup in SETUPS]
        rows = [row for name in names if name in figures for row in figures[name]["rows"]]
        if rows:
            lines = [[*_setup(row), *_ratios(row)] for row in rows]
            parts.append(f"On `{engine}`, {_ahead(rows)}:\n\n{table(['network', 'gates', '', *RATIOS], lines, 3)}")
    over: dict[tuple[str, ...], dict[str, str]] = {}
    names = [f"latency-{engine}-{link}" for engine in ENGINES for link in ("lan", "wan")]
    columns = {name: f"{figures[name]['engine']}, {figures[name]['link'].upper()}" for name in names if name in figures}
    for name in columns:
        for row in figures[name]["rows"]:
            over.setdefault(_setup(row), {})[name] = seconds(row["seconds"])
    if over:
        lines = [[*row, *(cells.get(name, "") for name in columns)] for row, cells in over.items()]
        parts.append("Time online over a link, for the first row of each network:")
        parts.append(table(["network", "gates", "", *columns.values()], lines, 3))
    return "\n\n".join(parts)


def _ahead(rows: list[Any]) -> str:
    """Count the budgets at which DeepShare takes less time than AutoReP."""
    ours, theirs = (
        {(row["setup"], row["gates"]): row["all_ratio"] for row in rows if row["kind"] == kind}
        for kind in ("DeepShare", "AutoReP")
    )
    pairs = [(ratio, theirs[where]) for where, ratio in ours.items() if where in theirs]
    return f"where DeepShare takes less time than AutoReP in {sum(a > b for a, b in pairs)} of {len(pairs)} rows"


def _setup(row: Any) -> tuple[str, str, str]:
    kind = "all ReLUs" if row["kind"] == "ReLU" else row["kind"]
    return SETUPS.get(row["setup"], row["setup"]), f"{row['gates']:,}", kind


def _ratios(row: Any) -> list[str]:
    ratios = [row[key] for key in ("activations_ratio", "all_ratio", "activation_bytes_ratio", "bytes_ratio", "paper")]
    shown = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    return [f"{row['seconds']:.2f} s", f"{row['rounds']}", *shown]


def two_party(figures: Figures) -> str:
    """Engines without a dealer."""
    header = ["engine, images together", "online", "sent", "round trips", "before", "sent", "session", "sent"]
    lines = []
    for about, row in ((one, row) for one in figures.values() for row in one["rows"]):
        where = ["full width"] if about.get("network") == "resnet18" else []
        where += [about["link"].upper()] if about.get("link") else []
        where += ["AVX2"] if about.get("capability") == "AVX2" else []
        before = ["", ""]
        if row["offline_bytes"]:
            before = [seconds(row["offline_seconds"] / row["images"]), megabytes(row["offline_bytes"])]
        online = [seconds(row["online_seconds"] / row["images"]), megabytes(row["online_bytes"]), f"{row['rounds']}"]
        session = [seconds(row["session_seconds"]), megabytes(row["session_bytes"])]
        lines.append([", ".join([row["engine"], f"{row['images']}", *where]), *online, *before, *session])
    dealt = [row for found in figures.values() for row in found["rows"] if row["engine"] == "gateshare"]
    counted = "counts" if all("dealer_seconds" in row for row in dealt) else "leaves out"
    said = f"""Times and bytes are for each image; a session serves all images that follow. With `gateshare` the first
        lot is dealt while the session is set up: "before" {counted} the dealer's time for it, which [the gate-sharing
        protocol](#the-gate-sharing-protocol) counts."""
    return f"{table(header, lines)}\n\n{say(said)}"


def engines(figures: Figures) -> str:
    """All engines with one network, so that one can choose."""
    rows = {row["engine"]: row for name in figures if name.startswith("two-party") for row in figures[name]["rows"]}
    lines = []
    for engine, trust in TRUST.items():
        if (row := rows.get(engine)) is not None:
            online = [seconds(row["online_seconds"]), megabytes(row["online_bytes"]), f"{row['rounds']}"]
            before = ["none", ""]
            if row["offline_bytes"]:
                before = [seconds(row["offline_seconds"]), megabytes(row["offline_bytes"])]
            session = [seconds(row["session_seconds"]), megabytes(row["session_bytes"])]
            lines.append([f"`{engine}`", trust, *online, *before, *session])
        elif engine == "crypten" and "latency-crypten-resnet18" in figures:
            (row,) = (
                one
                for one in figures["latency-crypten-resnet18"]["rows"]
                if (one["kind"], one["gates"]) == ("DeepShare", 6_000)
            )
            online = [seconds(row["seconds"]), "", f"{row['rounds']}"]
            lines.append([f"`{engine}`", trust, *online, "", megabytes(row["bytes_before"]), "", ""])
    header = ["engine", "you trust", "online", "sent", "round trips", "before the image", "sent", "once", "sent"]
    missing = [f"`{engine}`" for engine in TRUST if f"`{engine}`" not in [line[0] for line in lines]]
    lacks = f" There is no record of {', '.join(missing)} yet." if missing else ""
    said = f"""Bytes are those of all parties. What is sent once serves all images of a pool or a connection. What is
        left blank was not recorded.{lacks}"""
    return f"{table(header, lines, 2)}\n\n{say(said)}"


def transfers(figures: Figures) -> str:
    """Oblivious transfers."""
    found = figures["ot"]
    ends = ("sender", "receiver")
    made, fast = ([found[f"{end}_{what}"] for end in ends] for what in ("random_seconds", "times_as_fast"))
    return say(
        f"""{found["count"]:,} random transfers take the sender {seconds(made[0])} and the receiver
        {seconds(made[1])} of processor time, {times(fast[0])} and {times(fast[1])} times as fast as a straightforward
        extension in numpy, and {found["bytes_a_transfer"]:.1f} bytes each."""
    )


def marks(figures: Figures) -> str:
    """Marks of an inference."""
    found = figures["marks"]
    client, server, sync = (found[f"{name}_median_ms"] for name in ("client", "server", "sync"))
    return say(
        f"""Marks take the client {client:.1f} ms an image and the server {server:.1f} ms, in pools of
        {found["lots"]:,} lots; to append 100 bytes to a file and sync it takes {sync:.1f} ms on the same disk."""
    )


def imagenet(figures: Figures) -> str:
    """Networks at 224x224."""
    header = ["network, gates, max-pooling", "comparisons", "online", "products", "sent online", "round trips"]
    header += ["before the image", "sent before", "memory of a process"]
    runs = [(found, row) for found in figures.values() for row in found["rows"]]
    rows = [row for _, row in runs]
    lines = [
        [
            f"{NETWORKS[row['network']]}, {row['gates']}, {POOLINGS[row['pooling']]}"
            + (", groups of a stage" if row.get("groups") == "stage" else "")
            + (", AVX2" if found.get("capability") == "AVX2" else ""),
            f"{row['comparisons']:,}",
            seconds(row["online"]),
            seconds(row["layers"]),
            megabytes(row["online_bytes"]),
            f"{row['rounds']}",
            seconds(row["offline"]),
            megabytes(row["offline_bytes"]),
            f"{max(row['memory'].values()) / 1e9:.1f} GB",
        ]
        for found, row in runs
    ]
    worst, loads = max(rows, key=lambda row: row["difference"]), [row["load"] for row in rows]
    said = f"""The largest difference of a logit from the network in the clear is {worst["difference"]:.3f}, of
        {worst["largest_logit"]:.0f}. While they ran the load was {min(loads):.1f} to {max(loads):.1f}."""
    deep = [row for row in rows if (row["network"], row["pooling"]) == ("resnet50", "shared")]
    spent = [
        f"{kind} {seconds(spent)}" for row in deep[:1] for kind, spent in sorted(row["profile"].items(), key=_by_time)
    ]
    profile = [
        say(f"The server's time for ResNet-50 with shared pooling, by kind of step: {', '.join(spent)}.")
    ] * bool(deep)
    wrong = [f"**{NETWORKS[row['network']]}: {fault}.**" for row in rows for fault in row["wrong"]]
    return "\n\n".join([table(header, lines), say(said), *profile, *wrong])


def _by_time(spent: tuple[str, float]) -> float:
    return -spent[1]


def estimated(figures: Figures) -> str:
    """Seconds that a plan estimates, beside those measured."""
    lines = []
    for row in figures["seconds"]["rows"]:
        pairs = [(row["online"], row["estimated_online"]), (row["before"], row["estimated_before"])]
        off = max(abs(guess / measured - 1) for measured, guess in pairs)
        lines.append([row["network"], *(seconds(value) for pair in pairs for value in pair), f"{100 * off:.0f}%"])
    header = ["", "online", "estimated", "before the image", "estimated", "off by"]
    return f"{table(header, lines)}\n\nThe calibration took {seconds(figures['seconds']['calibration'])}."


def clients(figures: Figures) -> str:
    """Throughput of a server."""
    lines = [
        [
            f"{row['clients']}",
            f"{row['images_a_second']:.1f}",
            seconds(row["online"]),
            seconds(row["slowest_online"]),
            f"{row['times']:.1f} times",
            f"{row['server_megabytes']:.0f} MB",
        ]
        for row in figures["clients"]
    ]
    header = ["clients", "images per second", "online, median", "slowest", "time for an image", "memory of the server"]
    said = f"""The time for an image is given in times of the server's own convolutions for one, which take
        {seconds(figures["clients"][0]["convolutions"])} if nobody else computes."""
    return f"{table(header, lines, 0)}\n\n{say(said)}"


def ask(figures: Figures) -> str:
    """A call from the shell."""
    wall, cpu = (sorted(figures["ask"][key]) for key in ("seconds", "cpu"))
    middle = len(wall) // 2
    return say(
        f"""`deepshare private ask` of one picture takes {seconds(wall[middle])} from start to end in the median of
        {len(wall)} calls ({seconds(wall[0])} to {seconds(wall[-1])}), with {seconds(cpu[middle])} of CPU time."""
    )


def soak(figures: Figures) -> str:
    """Minutes of kills and hostile clients."""
    found = figures["soak"]
    kills, memory = found["kills"], found["server_megabytes"]
    victims = ", ".join(f"{who} {count}" for who, count in kills.items())
    return say(
        f"""{found["seconds"] / 60:.0f} minutes with {found["clients"]} clients of a small network, two hostile ones and
        {sum(kills.values())} kills ({victims}): {found["answers"]:,} answers, {found["wrong"]} wrong; {found["lots"]:,}
        lots, {found["lots_twice"]} used twice; at most {seconds(found["longest_wait"])} from image to answer while the
        server was up, and at most {seconds(found["longest_refusal"])} from a refusal to an answer.
        {len(found["ended"])} processes ended by themselves. In the last third the server's memory went from
        {memory[0]:.0f} to {memory[1]:.0f} MB."""
    )


def fidelity(figures: Figures) -> str:
    """Agreement of crypten with the plain network."""
    found = figures["fidelity"]
    return say(
        f"""On {found["images"]} test digits with `{found["engine"]}` the logits of `digits-resnet10-192` differ by
        {found["median"]:.0e} in the median and {found["largest"]:.0e} at most; the class agrees on
        {found["same_class"]}."""
    )


def fidelity_without_dealer(figures: Figures) -> str:
    """Agreement of fixed point with the plain network, in the clear."""
    found = figures["fidelity-2pc"]
    return say(
        f"""On {found["images"]:,} test images of CIFAR-100 the network `cifar100-resnet18w16-2288` keeps its class on
        {found["same_class_before_noise"]} in fixed point before the noise, with {found["flipped"]} of
        {found["gates"]:,} gates flipped by rounding. This is an evaluation in the clear: no parties ran. Given the same
        shares all steps round alike with and without a dealer, so `--engine gateshare` gives the same figures."""
    )


def comparison_bits(figures: Figures) -> str:
    """Gates that comparisons of fewer bits get wrong, on trained networks."""
    lines = []
    for name, found in figures.items():
        _, network, kind = name.split("-")
        least, most = found["bits"]
        bits = f"{kind}, {least if least == most else f'{least} to {most}'}"
        flipped = f"{found['flipped']} of {found['gates']:,}"
        kept = f"{found['same_class_before_noise']} of {found['images']:,}"
        lines.append([f"`cifar100-resnet18w16-{network}`", bits, flipped, kept])
    return table(["network", "bits", "gates that differ", "classes kept"], lines, 2)


def fidelity_of_parties(figures: Figures) -> str:
    """Agreement of private inference by real parties with the plain network."""
    said = [
        f"""`{found["engine"]}` gives the class of the plain network on {found["same_class"]:,} of
        {found["images"]:,}; logits differ by {found["median"]:.4f} in the median and {found["largest"]:.3f} at most,
        noise included, and on {found["far_off"]} images by more than 0.1."""
        for found in figures.values()
    ]
    return say(f"""Test images of CIFAR-100, asked privately with real parties (`cifar100-resnet18w16-2288`).
        {" ".join(said)}""")
