"""`deepshare private`, and `plan --cost`."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from deepshare.cli import main
from deepshare.cli.private.show import show_distance
from deepshare.data import load
from deepshare.private.remote.ask import connect
from deepshare.private.runtime.party import free_ports
from tests.cli.command import FLAGS, Cli

ROOT = Path(__file__).parents[2]
crypten = pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")
nacl = pytest.mark.skipif(find_spec("nacl") is None, reason="PyNaCl is not installed")
spu = pytest.mark.skipif(find_spec("spu") is None, reason="spu is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("private") / "run"
    main(["train", "-r", "digits", "--out", str(out), *FLAGS])
    return out


@crypten
@pytest.mark.usefixtures("parties_are_threads")
def test_run_shows_classes_and_cost(cli: Cli, run: Path, tmp_path: Path) -> None:
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    Image.fromarray(test.images[0, 0].numpy()).save(tmp_path / "one.png")
    asked = cli("private", "run", run, "-e", "crypten", "--images", tmp_path / "one.png", "--json")
    assert asked.code == 0, asked.err
    assert asked.err.startswith("crypten: ")
    said = json.loads(asked.out)
    evaluated = json.loads(cli("eval", run, "--json").out)
    assert said["cost"]["online"]["comparisons"] == evaluated["gates"]
    assert said["cost"]["error"] < 1e-2
    assert said["images"][0]["image"] == str(tmp_path / "one.png") and said["images"][0]["class"] in test.classes
    text = cli("private", "run", run, "--samples", "2", "--layers").out
    assert "test image 1 (" in text and "SharedActivation layer1.0.act1" in text
    assert re.search(r"\d\.\d{3} s online for 2 images, \d\.\d{3} s each", text)


@spu
@pytest.mark.slow
def test_run_without_a_dealer(cli: Cli, run: Path) -> None:
    with_dealer, without = (
        cli("private", "run", run, "-e", name, "--samples", "1", "--json") for name in ("gateshare", "gateshare-2pc")
    )
    assert without.code == 0, without.err
    assert "a client that deviates reads exact weights" in without.err
    assert "first the parties make randomness" in without.err and "randomness" not in with_dealer.err
    said, expected = json.loads(without.out), json.loads(with_dealer.out)
    assert said["images"][0]["class"] == expected["images"][0]["class"]
    assert said["cost"]["error"] < 0.05 and said["cost"]["offline"]["dealer_bytes"] == 0
    for key in ("comparisons", "products"):
        assert said["cost"]["online"][key] == expected["cost"]["online"][key] > 0


@pytest.mark.usefixtures("parties_are_threads")
def test_gateshare_from_outline_to_answer(cli: Cli, run: Path, tmp_path: Path) -> None:
    """All commands of the guide, with a dealer's pools and certificates, the server a process of its own."""
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    pictures = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(pictures):
        Image.fromarray(test.images[number, 0].numpy()).save(path)
    steps: list[tuple[object, ...]] = [
        ("keys", tmp_path / "trial", "--host", "localhost", "--clients", "2"),
        ("outline", run, tmp_path / "network.json"),
        ("deal", tmp_path / "network.json", tmp_path / "pools", "--images", "4", "--clients", "2"),
    ]
    for step in steps:
        done = cli("private", *step)
        assert done.code == 0, done.err
    alone = json.loads(cli("private", "run", run, "--images", *pictures, "--json").out)
    (tmp_path / "stock").mkdir()
    assert cli("private", "pool", "add", tmp_path / "stock", tmp_path / "pools/server").code == 0
    with serving(run, "--pool", tmp_path / "stock", "--tls", tmp_path / "trial/server") as port:
        where = ("--server", f"localhost:{port}", "--tls", tmp_path / "trial/client-1")
        asked = cli("private", "ask", *pictures, *where, "--pool", tmp_path / "pools/client-1", "--json")
        assert asked.code == 0, asked.err
        refused = cli("private", "ask", pictures[0], *where)
        assert refused.code == 2 and "--pool" in refused.err
        # A new dealing while it runs; the old one goes on.
        more = ("deal", tmp_path / "network.json", tmp_path / "more", "--images", "1")
        dealt = cli("private", *more)
        assert "statistical distance of the server's views of any two images: below 2^-" in dealt.out
        assert "server-2 is there" in cli("private", "pool", "add", tmp_path / "stock", tmp_path / "more/server").out
        for pool, warned in (("more/client", True), ("pools/client-1", False)):
            again = cli("private", "ask", pictures[0], *where, "--pool", tmp_path / pool, "--json")
            assert again.code == 0, again.err
            assert ("for client has 0 of 1 images left, 5% or less: make more" in again.err) == warned
    left = json.loads(cli("private", "pool", "status", tmp_path / "stock", "--json").out)
    assert {(row["pool"], row["owner"]): row["left"] for row in left} == {
        ("server", "client-1"): 1,
        ("server", "client-2"): 4,
        ("server-2", "client"): 0,
    }
    table = cli("private", "pool", "status", tmp_path / "stock").out
    assert "pool server-2 for client has 0 of 1 images left, 5% or less: make more" in table
    assert "client-1" in cli("private", "pool", "status", tmp_path / "pools/client-1").out
    assert "is a pool itself" in cli("private", "pool", "add", tmp_path / "stock/server", tmp_path / "more/client").err
    said = json.loads(asked.out)
    assert [image["class"] for image in said["images"]] == [image["class"] for image in alone["images"]]
    for key in ("server_bytes", "client_bytes", "rounds", "comparisons"):
        assert said["cost"]["online"][key] == alone["cost"]["online"][key] > 0
    # The same material; now and then a lot has to be replaced.
    assert said["cost"]["offline"]["dealer_bytes"] == pytest.approx(alone["cost"]["offline"]["dealer_bytes"], rel=0.5)
    assert alone["cost"]["error"] < 0.05


def test_a_large_bound_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    show_distance(2.0**-14, 16, "16 images")
    said = capsys.readouterr()
    assert said.out.endswith("images: below 2^-14.0; of all 16 images: below 2^-10.0\n") and not said.err
    show_distance(2.0**-14, 17, "17 images")
    warning = capsys.readouterr().err
    assert warning.startswith("warning: the bound of all 17 images is above 2^-10: give a client fewer images")
    assert warning.count("\n") == 1


@nacl
def test_a_pool_that_both_made_is_asked_again_and_again(cli: Cli, run: Path, tmp_path: Path) -> None:
    """All commands of the guide without a dealer."""
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    Image.fromarray(test.images[0, 0].numpy()).save(tmp_path / "0.png")
    assert cli("private", "keys", tmp_path / "trial", "--host", "localhost").code == 0
    (tmp_path / "stock").mkdir()
    own = ("-e", "gateshare-2pc", "--pool", tmp_path / "stock", "--tls", tmp_path / "trial/server")
    with serving(run, *own) as port:
        where = ("--server", f"localhost:{port}", "--tls", tmp_path / "trial/client", "--pool", tmp_path / "mine")
        made = cli("private", "prepare", *where, "--images", "2")
        assert made.code == 0, made.err
        assert "mine is good for 2 more images" in made.out
        _, connecting, setup, *_, last = made.err.splitlines()
        assert connecting == f"0%  connecting to localhost:{port}" and setup.startswith("0%  session setup: keys")
        assert last.startswith(("100%", "warning: the bound of all 2 images"))
        assert "statistical distance of the server's views of any two images: below 2^-" in made.out
        for _ in range(2):
            asked = cli("private", "ask", tmp_path / "0.png", *where, "--json")
            assert asked.code == 0, asked.err
            assert json.loads(asked.out)["cost"]["offline"]["dealer_bytes"] == 0


@pytest.mark.usefixtures("parties_are_threads")
def test_classes_without_logits(cli: Cli, run: Path, tmp_path: Path) -> None:
    """A server that gives the class alone: pools are dealt for that, and the client is told."""
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    picture = tmp_path / "one.png"
    Image.fromarray(test.images[0, 0].numpy()).save(picture)
    plain = json.loads(cli("private", "run", run, "--images", picture, "--json").out)
    best = json.loads(cli("private", "run", run, "--images", picture, "--answer", "top5", "--json").out)
    expected = plain["images"][0]["class"]
    assert best["images"][0]["classes"][0] == expected and len(set(best["images"][0]["classes"])) == 5
    gates = plain["cost"]["online"]["comparisons"]
    assert best["cost"]["online"]["comparisons"] == gates + 9 + 8 + 7 + 6 + 5 and best["cost"]["error"] is None
    for step in (
        ("outline", run, tmp_path / "class.json", "--answer", "class"),
        ("deal", tmp_path / "class.json", tmp_path / "pools", "--images", "2"),
    ):
        assert cli("private", *step).code == 0
    refused = cli("private", "serve", run, "--pool", tmp_path / "pools/server")
    assert refused.code == 2 and "for this network and this --answer: give such a pool" in refused.err, refused.err
    with serving(run, "--pool", tmp_path / "pools/server", "--answer", "class") as port:
        where = ("--server", f"localhost:{port}", "--pool", tmp_path / "pools/client")
        asked = cli("private", "ask", picture, *where, "--json")
        assert asked.code == 0 and "the server gives the class alone, without logits" in asked.err, asked.err
        said = json.loads(asked.out)
        assert said["images"] == [{"image": str(picture), "class": expected, "classes": [expected]}]
        assert said["cost"]["online"]["comparisons"] == gates + 9
        assert expected in cli("private", "ask", picture, *where).out.splitlines()[0]
    crypten = cli("private", "run", run, "-e", "crypten", "--images", picture, "--answer", "class")
    assert crypten.code == 2 and ("gives logits alone" in crypten.err or "needs" in crypten.err)


@contextmanager
def serving(run: Path, *arguments: object) -> Iterator[int]:
    """A server's process, on a free port."""
    (port,) = free_ports("127.0.0.1", 1)
    command = [
        sys.executable,
        "-m",
        "deepshare",
        "private",
        "serve",
        run,
        "--port",
        port,
        *arguments,
    ]
    with subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("serving" in line for line in process.stderr), "it ended"
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
    assert process.returncode == 0


def test_what_is_wrong_is_one_line(cli: Cli, run: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 8)).save(tmp_path / "p.png")
    wrong = cli("private", "run", run, "--images", tmp_path / "p.png")
    assert wrong.code == 2 and "p.png has 9x8 pixels but the network takes 8x8" in wrong.err
    assert "--samples 0: give more than 0" in cli("private", "run", run, "--samples", "0").err
    assert "no engine is named foo" in cli("private", "run", run, "--engine", "foo").err
    assert "there is no folder" in cli("private", "serve", tmp_path / "none").err
    old = shutil.copytree(run, tmp_path / "old")
    (old / "images.json").unlink()
    assert "does not say what its images are like" in cli("private", "run", old).err
    (old / "images.json").write_text("{")
    assert "images.json is damaged" in cli("private", "run", old).err
    ask = ("private", "ask", tmp_path / "p.png", "--server")
    assert "no server at 127.0.0.1:9" in cli(*ask, "127.0.0.1:9", "-e", "gateshare").err
    assert "give your pool with --pool, or an engine with --engine" in cli(*ask, "127.0.0.1:9").err
    assert "is another machine, and without TLS" in cli(*ask, "192.0.2.7:8443", "-e", "gateshare").err
    assert "99999 is no port" in cli("private", "serve", run, "-e", "crypten", "--port", "99999").err
    assert "--log-level loud: take one of debug" in cli("private", "serve", run, "--log-level", "loud").err


def test_what_is_wrong_with_a_server_is_one_line(cli: Cli, run: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    cli("private", "keys", keys)
    serve = ("private", "serve", run, "-e", "crypten", "--port", "0")
    assert f"{keys}/client/certificate.pem names no host" in cli(*serve, "--tls", keys / "client").err
    for wrong in (("--max-clients", "0"), ("--max-each", "0"), ("--drain", "-5"), ("--drain", "inf")):
        assert "serve at least one client, and give seconds of 0 or more" in cli(*serve, *wrong).err
    bad = cli("private", "keys", tmp_path / "more", "--host", "bad host")
    assert "'bad host' is no name or address of a host" in bad.err and not (tmp_path / "more").exists()
    cli("private", "outline", run, tmp_path / "network.json")
    dealer = ("private", "dealer", tmp_path / "network.json", tmp_path / "dealing", "--tls")
    assert "--listen 18449: give HOST:PORT" in cli(*dealer, keys / "dealer", "--listen", "18449").err
    assert "names no host" in cli(*dealer, keys / "client").err
    fill = ("private", "pool", "fill", tmp_path / "pool", "--tls", keys / "client", "--dealer")
    assert "127.0.0.1 is no address: give HOST:PORT" in cli(*fill, "127.0.0.1").err
    assert "localhost:99999 is no address" in cli(*fill, "localhost:99999").err
    assert "no dealer at 127.0.0.1:9" in cli(*fill, "127.0.0.1:9", "--once").err
    assert "--every -1: give seconds" in cli(*fill, "127.0.0.1:9", "--every", "-1").err


@pytest.mark.parametrize(("content", "words"), [(b"[private.serve", "Expected ']'"), (b"\xff", "utf-8")])
def test_a_broken_configuration_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deepshare.toml").write_bytes(content)
    said = cli("private", "serve", "x")
    assert said.code == 2 and said.err.startswith("deepshare: deepshare.toml: ") and words in said.err


def test_a_server_in_operation(cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags from a file and from variables, figures and health over HTTP, JSON in its log, and an end by SIGTERM."""
    cli("private", "outline", run, tmp_path / "network.json")
    assert cli("private", "deal", tmp_path / "network.json", tmp_path / "pools", "--images", "5").code == 0
    port, monitor = free_ports("127.0.0.1", 2)
    (tmp_path / "deepshare.toml").write_text(
        f'[private.serve]\nport = {port}\nlog_json = true\npool = ["pools/server"]\nmonitor = "127.0.0.1:1"\n'
    )
    given = {"DEEPSHARE_PRIVATE_SERVE_MONITOR": f"127.0.0.1:{monitor}", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "deepshare", "private", "serve", str(run)]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **given}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any("serving" in line for line in process.stderr), "it ended"
        where = f"http://127.0.0.1:{monitor}"
        assert urlopen(f"{where}/healthz").read() == b"ok\n"
        with connect(f"127.0.0.1:{port}", pool=tmp_path / "pools/client", ahead=False) as remote:
            remote.classify(torch.zeros(4, *remote.about.size))
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(bytes(100))
            stranger.recv(1)
        for _ in range(5):  # hangs up before the answer
            with socket.create_connection(("127.0.0.1", monitor)) as hasty:
                hasty.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with ExitStack() as many:
            idle = [many.enter_context(socket.create_connection(("127.0.0.1", monitor))) for _ in range(100)]
            idle[-1].settimeout(30)
            assert idle[-1].recv(1) == b""  # no room
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 80
        figures = urlopen(f"{where}/metrics").read().decode()
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 0
    families = {family.name: family for family in text_string_to_metric_families(figures)}
    kinds = {name: family.type for name, family in families.items()}
    assert kinds["deepshare_images"] == "counter" and kinds["deepshare_inference_seconds"] == "histogram"
    found = {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert found["deepshare_images_total", "run"] == 4 and found["deepshare_inferences_total", "run"] == 1
    assert found["deepshare_sent_bytes_total", "run"] > 1000
    assert found["deepshare_pool_images_left", "run", "client", "server"] == 1
    assert found["deepshare_pool_images_dealt", "run", "client", "server"] == 5
    for phase in ("session", "offline", "online"):
        assert found["deepshare_inference_seconds_count", "run", phase] == 1
        assert found["deepshare_inference_seconds_bucket", "+Inf", "run", phase] == 1
    assert found["deepshare_refusals_total", "stranger"] == 1
    assert found["deepshare_sessions",] == 0
    lines = [json.loads(line) for line in rest.splitlines()]
    said = [line for line in lines if "4 images in" in line["message"]]
    assert said[0]["level"] == "info" and said[0]["images"] == 4 and said[0]["owner"] == "client"
    assert lines[-1]["message"] == "ended"


def test_help_says_whom_to_serve(cli: Cli) -> None:
    said = " ".join(cli("private", "serve", "--help").out.split())
    assert "serve only clients that you would trust with the model" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line(cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, mode: str) -> object:
        os.close(handle)
        return Path("/dev/full").open(mode)

    monkeypatch.setattr("deepshare.files.os.fdopen", full)
    said = cli("report", run, "--out", tmp_path / "report.html")
    assert said.code == 2 and "the disk is full" in said.err and len(said.err.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_is_written_to_and_not_replaced(cli: Cli, run: Path, tmp_path: Path) -> None:
    device = tmp_path / "full"
    device.symlink_to("/dev/full")
    said = cli("report", run, "--out", device)
    assert said.code == 2 and "the disk is full" in said.err and len(said.err.splitlines()) == 1
    assert device.is_symlink() and device.is_char_device()


def test_keys(cli: Cli, tmp_path: Path) -> None:
    assert cli("private", "keys", tmp_path / "k", "--host", "a.example", "10.0.0.1").code == 0
    assert "is there already" in cli("private", "keys", tmp_path / "k").err


def test_plan_with_cost(cli: Cli) -> None:
    said = cli("plan", "resnet18", "--budget", "6000", "--cost", "crypten", "--json")
    cost = json.loads(said.out)["cost"]
    assert cost["this plan"]["online"]["comparisons"] == 6000
    assert cost["all ReLUs"]["online"]["comparisons"] == 491_520
    saved = cost["all ReLUs"]["activations"]["client_bytes"] / cost["this plan"]["activations"]["client_bytes"]
    assert saved > 11
    assert "give --cost ENGINE with it" in cli("plan", "resnet18", "--budget", "6000", "--answer", "class").err
    words = ("plan", "resnet18", "--budget", "6000", "--cost", "gateshare", "--answer", "class", "--no-seconds")
    told = cli(*words, "--json")
    assert json.loads(told.out)["cost"]["this plan"]["online"]["comparisons"] == 6000 + 99
    assert "this plan  activations        6,000" in cli("plan", "resnet18", "--budget", "6000", "--cost", "crypten").out


def test_plan_with_the_costs_of_several_engines(cli: Cli) -> None:
    words = ("plan", "resnet10", "--model.arguments.width", "8", "--budget", "2000", "--cost")
    alone = json.loads(cli(*words, "crypten", "--json").out)
    told = json.loads(cli(*words, "gateshare", "gateshare-2pc", "crypten", "--no-seconds", "--json").out)
    assert set(told) == {"plan", "costs"} and list(told["costs"]) == ["gateshare", "gateshare-2pc", "crypten"]
    assert told["costs"]["crypten"] == alone["cost"] and told["plan"] == alone["plan"]
    printed = cli(*words, "gateshare", "--cost", "gateshare-2pc", "--no-seconds").out
    assert printed == cli(*words, "gateshare", "gateshare-2pc", "--no-seconds").out
    rows = [line.split() for line in printed.splitlines()]
    ours = {row[2]: row for row in rows if row[:2] == ["this", "plan"]}
    assert list(ours) == ["gateshare", "gateshare-2pc"] and {row[3] for row in ours.values()} == {"2,000"}
    # Who has a dealer gets more from it than it sends, and nobody deals without one.
    sent, dealt = ({name: row[i : i + 2] for name, row in ours.items()} for i in (11, 13))
    assert dealt["gateshare-2pc"] == ["0", "B"] != dealt["gateshare"] and sent["gateshare-2pc"] != sent["gateshare"]
    assert "no engine" in cli(*words, "gateshare", "gatshare").err


def test_plan_estimates_seconds_of_gateshare(cli: Cli) -> None:
    words = ("plan", "resnet18", "--budget", "6000", "--cost", "gateshare")
    said = cli(*words, "--json")
    assert said.err == "timing small private runs and the network's products, some ten seconds (--no-seconds)\n"
    costs = json.loads(said.out)["cost"]
    for cost in costs.values():
        online, before = cost["estimated_seconds"]["online"], cost["estimated_seconds"]["before the image"]
        assert 0 < online["this machine"] < online["LAN, 1 Gbit/s, 0.5 ms"] < online["WAN, 100 Mbit/s, 40 ms"]
        opened, dealt = cost["offline"]["client_bytes"], cost["offline"]["dealer_bytes"]
        added = before["WAN, 100 Mbit/s, 40 ms"] - before["this machine"]
        # The client's half of a lot crosses the link, the server's does not; the client waits for the server twice.
        assert before["this machine"] > 0 and 8 * opened / 1e8 < added - 0.08 < 8 * (opened + dealt / 2) / 1e8
    few, full = (costs[name]["estimated_seconds"]["online"]["this machine"] for name in ("this plan", "all ReLUs"))
    assert few < full
    plain = cli(*words, "--no-seconds")
    assert "Seconds in all" not in plain.out and plain.err == ""
    assert "estimated with --cost gateshare alone" in cli(*words[:-1], "crypten", "--no-seconds").err
