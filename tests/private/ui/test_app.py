"""The page over HTTP, with the demo that it starts itself."""

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from deepshare.private.ui.app import LARGEST_PICTURE
from tests.private.ui.page import fetched, page


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    with page() as where:
        yield where
    deadline = time.monotonic() + 30  # the server ends after the page that tells it to, and so may that of another test
    while left := subprocess.run(["pgrep", "-f", "private serve .*private/ui/digits"], capture_output=True).stdout:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_a_picture_goes_in_and_everyone_sees_what_it_should(demo: str) -> None:
    before = json.loads(fetched(demo, "/about")[1])
    assert (before["size"], before["classes"], before["samples"], before["left"]) == ([1, 8, 8], 10, 10, 200)
    pictures = [fetched(demo, f"/samples/{number}.png")[1] for number in range(10)]
    answers = [json.loads(fetched(demo, "/ask", picture)[1]) for picture in pictures + pictures[:1]]
    assert sum(answer["classes"][0]["name"] == str(digit) for digit, answer in enumerate(answers[:10])) >= 8
    first, again = answers[0], answers[10]
    assert first["picture"] == again["picture"]
    assert first["share"] != again["share"] and first["words"] != again["words"]
    # The layers account for every byte, and 96 gates were computed in a network of 1,920.
    for party in ("client", "server"):
        assert sum(layer[party] for layer in first["layers"]) == first[f"{party}_bytes"] > 0
    assert first["layers"][0] | {"begin": 0, "end": 0} == {
        "name": "input",
        "client": 8 * 64,
        "server": 0,
        "begin": 0,
        "end": 0,
    }
    assert first["comparisons"] == 96
    assert len(first["classes"]) == 5 and first["classes"] == sorted(
        first["classes"], key=lambda one: -one["probability"]
    )
    assert json.loads(fetched(demo, "/about")[1])["left"] == 200 - 11


def test_strangers_are_refused(demo: str) -> None:
    port = demo.split(":")[1]
    picture = fetched(demo, "/samples/1.png")[1]
    # A name of someone else that points to 127.0.0.1, and a form or a script on another site.
    for path, body in (("/", None), ("/about", None), ("/samples/0.png", None), ("/ask", picture)):
        assert fetched(demo, path, body, Host=f"rebound.example:{port}")[0] == 421
    for origin in ("http://evil.example", "null", "", f"http://127.0.0.1:{int(port) + 1}", f"https://{demo}"):
        assert fetched(demo, "/ask", picture, Origin=origin)[0] == 403
    assert fetched(demo, "/ask", picture, Host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0] == 200
    status, content, headers = fetched(demo, "/")
    assert status == 200 and b"<title>DeepShare" in content
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "http" not in policy
    assert "access-control-allow-origin" not in headers


def test_what_is_wrong_is_one_line(demo: str) -> None:
    left = json.loads(fetched(demo, "/about")[1])["left"]
    for body, status, words in (
        (b"", 400, "the picture: damaged or no image"),
        (b"no picture", 400, "the picture: damaged or no image"),
        (fetched(demo, "/samples/0.png")[1][:60], 400, "the picture: damaged or no image"),
        (bytes(LARGEST_PICTURE + 1), 413, "the picture has more than 16 MB"),
    ):
        found, content, _ = fetched(demo, "/ask", body)
        said = json.loads(content)["error"]
        assert (found, words in said, "\n" in said) == (status, True, False), said
    assert fetched(demo, "/samples/10.png")[0] == 404
    assert json.loads(fetched(demo, "/about")[1])["left"] == left
