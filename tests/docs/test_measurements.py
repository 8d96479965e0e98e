"""Measured parts of pages are what the records say, and say which of them are older than their code."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from dev import measurements
from dev.measured import catalog, code
from dev.measured.catalog import DATA, MEASUREMENTS, Measurement
from dev.measured.page import MARKS, OLD_FIGURES, PAGES, PARTS, STALE, filled
from dev.measurements import FailedError
from tests.docs.pages import ROOT

MEASURED = [one for one in MEASUREMENTS if one.file.is_file()]
UNMEASURED = ("*Measured before records were kept", "*No record yet.*")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_records_say(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    figures = {one.name: one.record["figures"] for one in MEASURED}
    written = filled(text, figures, {one.name: measurements.about(one) for one in MEASURED})
    assert plain(text) == plain(written), "python dev/measurements.py --page writes it"


def plain(text: str) -> str:
    """The page without marks that a change of code, a rebase or a shallow clone makes wrong, and `make docs` right."""
    marks = "|".join(map(re.escape, (STALE, OLD_FIGURES, measurements.UNKNOWN)))
    joined = " ".join(text.split())  # a mark may be broken into two lines
    return " ".join(re.sub(marks, "", joined).split())


@pytest.mark.parametrize("page", PAGES)
def test_a_part_without_a_record_says_so(page: str) -> None:
    names = {one.name for one in MEASURED}
    for found in MARKS.finditer((ROOT / page).read_text(encoding="utf-8")):
        said = any(words in found[0] for words in UNMEASURED)
        assert said == (PARTS[found[1]].names[0] not in names), found[1]


def test_every_part_is_on_a_page_and_every_measurement_in_a_part() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert sorted(found[1] for found in MARKS.finditer(text)) == sorted(PARTS)
    assert {name for part in PARTS.values() for name in part.names} == {one.name for one in MEASUREMENTS}


def test_records_that_are_older_than_their_code_are_named() -> None:
    if stale := [one.name for one in MEASURED if measurements.state(one) != "current"]:
        warnings.warn(f"measured before the code changed: {', '.join(stale)}: make measurements", stacklevel=1)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one benchmark."""
    monkeypatch.setattr(measurements, "ROOT", tmp_path)
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    monkeypatch.setattr(catalog, "RECORDS", tmp_path / "records")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "gate.py").write_text("def gate(x):\n    return x >= 0\n")
    (tmp_path / "bench.py").write_text('import sys\nprint(\'{"seconds": 1}\' if "--json" in sys.argv else "1 s")\n')
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "All")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b", *words], cwd=folder, check=True)


def bench(command: str = "bench.py") -> Measurement:
    return Measurement("gate", command, ("code",), 0.1)


def test_a_change_of_the_code_makes_a_record_stale(project: Path) -> None:
    one, gate = bench(), project / "code" / "gate.py"
    assert measurements.state(one) == "not measured"
    measurements.measure(one)
    assert measurements.state(one) == "current"
    assert one.record["figures"] == {"seconds": 1} and one.record["within_limits"]
    assert len(one.record["commit"]) == 12 and one.record["load_before"] >= 0
    assert STALE not in measurements.about(one)
    gate.write_text('"""Gates."""\n\n\ndef gate(x):\n    """Compare."""\n    # as in the paper\n    return x >= 0\n')
    assert measurements.state(one) == "current"
    gate.write_text("def gate(x):\n    return x > 0\n")
    assert measurements.state(one) == "stale"
    assert STALE in measurements.about(one)
    assert measurements.state(bench("bench.py --fast")) == "other command"


def test_a_rebase_takes_the_commit_and_leaves_the_record(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench()
    measurements.measure(one)
    commit, bound = one.record["commit"], one.record["code"]
    assert code.fingerprint(project, one.record["paths"], commit) == bound
    (project / "code" / "gate.py").write_text("def gate(x):\n    return x > 0\n")
    git(project, "commit", "-qam", "Strictly")
    assert code.fingerprint(project, one.record["paths"], commit) == bound != measurements.fingerprint(one)
    assert f"commit {commit}, " in measurements.about(one)
    git(project, "reset", "-q", "--hard", commit)
    git(project, "commit", "-q", "--amend", "-m", "All, in other words")
    assert f"commit {commit} (not in this history), " in measurements.about(one)
    assert measurements.state(one) == "current"


def test_a_shallow_clone_misses_no_commit(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    git(project, "commit", "-q", "--allow-empty", "-m", "One more")
    first = code.git(project, "rev-parse", "HEAD~")
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", "--depth", "1", project.as_uri(), ".")
    assert code.is_whole(project) and not code.is_whole(clone)
    assert code.in_history(project, first) and code.in_history(clone, first)
    assert not code.in_history(project, "0" * 40) and code.in_history(clone, "0" * 40)
    assert code.in_history(tmp_path_factory.mktemp("unpacked"), first)


def test_code_that_changes_under_a_benchmark_gives_no_record(project: Path) -> None:
    (project / "edits.py").write_text("open('code/gate.py', 'a').write('x = 1\\n')\nprint('{}')\n")
    with pytest.raises(FailedError, match="changed while it ran"):
        measurements.measure(bench("edits.py"))
    assert not bench("edits.py").file.exists()


def test_a_missed_limit_is_kept_and_a_failure_is_not(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "write_pages", lambda: None)
    (project / "missed.py").write_text("print('{}')\nraise SystemExit('too slow')\n")
    (project / "broken.py").write_text("raise ValueError('no figures')\n")
    broken, missed = bench("broken.py"), bench("missed.py")
    assert measurements.run_all([broken], None) == [
        "gate: it printed no figures and ended with 1; what it said is above"
    ]
    assert not broken.file.exists()
    assert measurements.run_all([broken, missed], None)[0].startswith("gate: ")
    assert not missed.record["within_limits"]
    assert "It missed a limit of its own." in measurements.about(missed)


def test_a_benchmark_that_hangs_or_lacks_its_data_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "LEAST_PATIENCE", 0.2)
    monkeypatch.setattr(measurements, "PATIENCE", 0)
    (project / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(FailedError, match="still running"):
        measurements.measure(bench("hangs.py"))
    with pytest.raises(FailedError, match="give --data-dir"):
        measurements.measure(bench(f"bench.py --data-dir {DATA}"))


def test_what_needs_data_is_skipped_and_what_is_left_is_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measurements, "write_pages", lambda: None)
    data = Measurement("needs", f"bench.py --data-dir {DATA}", ("code",), 30)
    first, second = (Measurement(name, "bench.py", ("code",), minutes) for name, minutes in (("a", 7), ("b", 2)))
    assert measurements.run_all([data, first, second], None) == []
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "needs: skipped, it needs data: --data-dir DIR, or make measurements DATA=DIR"
    assert said[1:] == [
        "1 of 2, 9 min left: a, 7.0 min: python bench.py",
        "2 of 2, 2 min left: b, 2.0 min: python bench.py",
    ]
    assert not data.file.exists() and second.record["figures"]
    assert measurements.run_all([data], project) == [] and data.file.exists()


def test_figures_that_a_page_cannot_show_are_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "write_pages", lambda: json.loads("{}")["rows"])
    (failed,) = measurements.run_all([bench()], None)
    assert failed == "gate: has a record, which its page cannot show: KeyError('rows')"
    assert bench().record["figures"]


def test_helpers_of_a_benchmark_and_their_helpers_make_its_record_stale(project: Path) -> None:
    (project / "bench.py").write_text("import helper\nprint('{}')\n")
    (project / "helper.py").write_text("import json\nfrom deeper import one\n")
    (project / "deeper.py").write_text("one = 1\n")
    assert bench().paths == ("bench.py", "helper.py", "deeper.py", "code")
    measurements.measure(bench())
    (project / "deeper.py").write_text("one = 2\n")
    assert measurements.state(bench()) == "stale"


def test_records_are_about_all_that_their_rows_run() -> None:
    paths = {one.name: one.paths for one in MEASUREMENTS}
    assert {"benchmarks/stock.py", "src/deepshare/private/engines/crypten"} <= set(paths["gateshare"])
    for name in ("gateshare", "two-party", "latency-crypten-lan"):
        assert {"src/deepshare/private/runtime", "benchmarks/link.py"} <= set(paths[name])


def test_uncommitted_code_is_not_measured(project: Path) -> None:
    (project / "benchmarks").mkdir()
    (project / "benchmarks" / "new.py").write_text("")
    with pytest.raises(SystemExit, match="commit first"):
        measurements.run_all([bench()], None)


def test_names_may_be_patterns_and_minutes_are_listed() -> None:
    names = [one.name for one in measurements.chosen(["latency-gateshare-*", "soak"])]
    assert "soak" in names and len(names) == 6
    assert " min  python benchmarks/soak.py\n" in measurements.listing(MEASUREMENTS)
    done = subprocess.run(
        [sys.executable, "dev/measurements.py", "--only", "sauk"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "no measurement is named sauk" in done.stderr


@pytest.mark.parametrize("one", MEASUREMENTS, ids=lambda one: one.name)
def test_a_measurement_names_files(one: Measurement) -> None:
    assert [path for path in (one.command.split()[0], *one.code) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("one", MEASURED, ids=lambda one: one.name)
def test_a_record_says_on_what(one: Measurement) -> None:
    assert one.record["figures"] and one.record["processor"] and one.record["load_before"] >= 0
    assert json.loads(one.file.read_text(encoding="utf-8"))["command"].startswith("python benchmarks/")


@pytest.mark.parametrize("one", MEASURED, ids=lambda one: one.name)
def test_the_commit_of_a_record_holds_the_code_that_was_measured(one: Measurement) -> None:
    record = one.record
    if not code.is_whole(ROOT):
        pytest.skip("no git repository, or a shallow clone, which lacks the commits of records")
    if not code.in_history(ROOT, record["commit"]):
        assert measurements.UNKNOWN in measurements.about(one)
        return
    assert code.fingerprint(ROOT, record["paths"], record["commit"]) == record["code"], (
        f"{record['commit']} has other code than was measured: python dev/measurements.py --only {one.name}"
    )


def made(network: str, seconds: float, **changes: object) -> dict[str, object]:
    """A row of benchmarks/gateshare.py."""
    sizes = {"rounds": 17, "online_bytes": 7_900_000, "dealer_to_client": 2_500_000, "dealer_to_server": 14_900_000}
    more = {"convolutions": seconds / 2, "offline_seconds": 0.4, "ahead": 8_400_000, "session": 89_700_000}
    return {"name": network, "gates": 6000, "seconds": seconds, **sizes, **more, **changes}


BATCH = {"batch": 8, "batch_before": 0.2, "batch_seconds": 0.05, "batch_all": 0.25}
ROWS = [
    made("gateshare", 0.05, same_class=32, of_images=32, flipped=3, of_gates=6144, session_seconds=2.0, **BATCH),
    made("gateshare, all ReLUs", 0.2, dealer_to_client=205_000_000),
    made("CrypTen as installed", 1.0, same_class=31, of_images=32, batch=8, batch_all=1.0),
]


def test_records_of_two_processors_stand_side_by_side() -> None:
    slower = [made("gateshare", 0.1), made("CrypTen as installed", 5.0)]
    found = {
        "gateshare": {"capability": "AVX512", "rows": ROWS},
        "gateshare-avx2": {"capability": "AVX2", "rows": slower},
        "gateshare-bits": {"capability": "AVX512", "rows": ROWS},
    }
    page = PARTS["protocol"].write(found)
    assert "|  | AVX512 | AVX2 |" in page
    assert "| gateshare, 6,000 gates | 0.050 s | 0.100 s |" in page
    assert "| gateshare, all ReLUs | 0.200 s, 4.0 times as long |  |" in page
    assert "| CrypTen as installed | 1.00 s, 20 times as long | 5.00 s, 50 times as long |" in page
    said = " ".join(page.split())
    assert "Online it takes 2.00 times as long as the server's convolutions alone, 17 round trips and 7.9 MB." in said
    assert "2.5 MB from the dealer to the client (82 times less than with all ReLUs)" in said
    assert "every engine gives at least 31 of 32 test digits (97%) the class" in said
    assert "flips 3 of 6,144 gates" in said
    assert "8 images together, each with AVX512: 0.200 s before the images and 0.050 s online, 0.250 s in all;" in said
    assert "CrypTen takes 1.00 s, 4.0 times as long." in said and "each with AVX2" not in said
    assert "With all ReLUs: 0.200 s, and 205.0 MB instead of 205.0 MB to the client." in said
    assert "of masked weights to the client, 2.00 s." in said


def test_the_readme_compares_engines_on_one_network() -> None:
    small = {"online_seconds": 0.2, "offline_seconds": 30.0, "offline_bytes": 1}
    engines = [{"engine": "gateshare-2pc", **small}, {"engine": "spu-cheetah", **small, "offline_bytes": 0}]
    page = PARTS["alternatives"].write({"gateshare": {"rows": ROWS}, "two-party-resnet18": {"rows": engines}})
    cells = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    shown = {(row[0].strip("| "), row[1]): row[3:5] for row in cells[1:]}
    assert shown["DeepShare, `gateshare`", "6,000"] == ["0.400 s", "0.050 s"]
    assert shown["DeepShare, `gateshare`", "all"] == ["0.400 s", "0.200 s"]
    assert shown["DeepShare, `gateshare-2pc`", "6,000"] == ["30.0 s", "0.200 s"]
    assert shown["SPU with Cheetah", "6,000"] == ["none", "0.200 s"]
    said = " ".join(page.split())
    assert "Online, `gateshare` is 20 times as fast as CrypTen" in said
    assert "an image in a batch of 8 takes 0.250 s, against 1.00 s with CrypTen." in said
    assert "no record is kept here" in said and "was not run here" in said
    assert "not measured yet" in PARTS["alternatives"].write({"gateshare": {"rows": ROWS}})


def test_the_readme_says_that_its_figures_are_old() -> None:
    text = "<!-- measured: alternatives -->\n\n<!-- end of alternatives -->"
    figures = {"gateshare": {"rows": ROWS}, "two-party-resnet18": {"rows": []}}
    for age, said in (("", 0), (f" {STALE}", 1)):
        abouts = {"gateshare": "measured.", "two-party-resnet18": f"measured.{age}"}
        page = filled(text, figures, abouts)
        assert page.count(OLD_FIGURES) == said and "measured." not in page


def test_comparisons_of_fewer_bits_have_a_table() -> None:
    found = {"gates": 1_536_000, "flipped": 66, "same_class_before_noise": 996, "images": 1000}
    page = PARTS["bits"].write(
        {"bits-1536-all": {**found, "bits": [34, 34]}, "bits-1536-calibrated": {**found, "bits": [20, 22]}}
    )
    assert "| `cifar100-resnet18w16-1536` | all, 34 | 66 of 1,536,000 | 996 of 1,000 |" in page
    assert "| calibrated, 20 to 22 |" in page


def test_links_larger_networks_and_calls_from_the_shell() -> None:
    found = {name: {"rows": ROWS} for name in ("gateshare-lan", "gateshare-wan", "wrn22-8", "resnet18-64")}
    assert PARTS["links"].write(found).count("0.050 s | 0.200 s, 4.0 times as long | 1.00 s, 20 times as long") == 2
    assert PARTS["larger"].write(found).count("| 6,000 | 0.050 s | 0.400 s | 0.200 s, 4.0 times as long |") == 2
    assert "takes 2.00 s from start to end in the median of 3 calls (1.00 s to 4.00 s)" in " ".join(
        PARTS["ask"].write({"ask": {"seconds": [4.0, 1.0, 2.0], "cpu": [1.0, 1.0, 1.0]}}).split()
    )


def test_the_table_of_all_engines_takes_what_is_recorded() -> None:
    row = {"images": 1, "rounds": 60, "online_seconds": 0.8, "online_bytes": 19_300_000, "offline_seconds": 2.0}
    row |= {"offline_bytes": 25_200_000, "session_seconds": 8.0, "session_bytes": 0}
    others = {"rows": [{"engine": "crypten", **row}, {"engine": "spu-semi2k", **row, "offline_bytes": 0}]}
    older = {"kind": "DeepShare", "gates": 6000, "seconds": 0.2, "rounds": 63, "bytes_before": 25_000_000}
    found = {"two-party-others": others, "latency-crypten-resnet18": {"rows": [older]}}
    page = PARTS["engines"].write(found)
    assert "| `crypten` | the server, or a third party | 0.800 s | 19.3 MB | 60 | 2.00 s | 25.2 MB | 8.00 s |" in page
    assert "| `spu-semi2k` | the server | 0.800 s | 19.3 MB | 60 | none |  | 8.00 s |" in page
    said = "There is no record of `gateshare`, `gateshare-2pc`, `spu-cheetah` yet."
    assert said in " ".join(page.split())
    assert "0.200 s |  | 63 |" in PARTS["engines"].write({"latency-crypten-resnet18": {"rows": [older]}})


def test_engines_without_a_dealer_say_where_they_ran() -> None:
    row = {"engine": "gateshare-2pc", "images": 8, "rounds": 25, "online_seconds": 0.8, "online_bytes": 2_100_000}
    row |= {"offline_seconds": 80.0, "offline_bytes": 15_000_000, "session_seconds": 8.0, "session_bytes": 20_000_000}
    found = {"network": "resnet18", "link": "wan", "rows": [row]}
    page = PARTS["two-party"].write({"two-party": found})
    assert "| gateshare-2pc, 8, full width, WAN | 0.100 s | 2.1 MB | 25 | 10.0 s | 15.0 MB | 8.00 s | 20.0 MB |" in page
    slower = PARTS["two-party"].write({"two-party": {**found, "capability": "AVX2"}})
    assert "| gateshare-2pc, 8, full width, WAN, AVX2 |" in slower
    for more, said in (({}, '"before" leaves out the'), ({"dealer_seconds": 0.1}, '"before" counts the')):
        dealt = {**found, "rows": [{**row, "engine": "gateshare", **more}]}
        assert said in " ".join(PARTS["two-party"].write({"two-party": dealt}).split())


def test_fixed_point_in_the_clear_has_a_part() -> None:
    command = [
        "benchmarks/fidelity.py",
        "digits-resnet10-192",
        "--engine",
        "gateshare-2pc",
        "--clear",
        "--tiny",
        "--json",
    ]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    page = " ".join(PARTS["fidelity-2pc"].write({"fidelity-2pc": json.loads(done.stdout)}).split())
    assert page.startswith("On 2 test images") and "of 384 gates flipped by rounding" in page
    assert json.loads(done.stdout)["bits"] == [34, 34]
