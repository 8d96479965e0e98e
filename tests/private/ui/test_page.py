"""The page in headless Chromium, beside `deepshare private ask` with the same server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tests.browser import chromium
from tests.cli.command import runner
from tests.private.remote.attacked import deal
from tests.private.remote.running import Running
from tests.private.ui.page import page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def browser() -> "Iterator[Browser]":
    with chromium() as browser:
        yield browser


def test_a_class_on_a_phone_is_the_one_that_ask_gives(
    browser: "Browser", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = deal(tmp_path, images=12, clients=1)
    running = Running(program, tmp_path / "keys", pools=[tmp_path / "server"])
    where = ("--server", running.address, "--pool", tmp_path / "client", "--tls", tmp_path / "keys" / "client")
    photo = Image.effect_noise((60, 40), 90).convert("RGB")
    photo.save(tmp_path / "photo.jpg")
    (tmp_path / "text.png").write_text("no picture")
    wrong = []
    with page(*where) as address:
        phone = browser.new_page(viewport={"width": 420, "height": 800}, color_scheme="dark")
        phone.on("pageerror", lambda error: wrong.append(str(error)))
        phone.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        requests: list[str] = []
        phone.on("request", lambda request: requests.append(request.url))
        phone.goto(f"http://{address}")
        phone.set_input_files("#file", tmp_path / "photo.jpg")
        phone.wait_for_selector("#class:not(:empty)", timeout=60_000)
        found, shown = phone.inner_text("#class"), phone.inner_text("#bars li:first-child")
        assert phone.locator("#bars li").count() == 5 and found in shown and "%" in shown
        assert "kB" in phone.inner_text("#figures") and "ms" in phone.inner_text("#figures")
        texts = phone.locator("#timeline text").all_text_contents()
        assert {"input", "1", "3"} <= set(texts)
        for name in ("picture", "share"):
            assert phone.evaluate(f"document.getElementById('{name}').naturalWidth") == 8
        assert phone.evaluate("document.documentElement.scrollWidth") == 420
        assert phone.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
        assert not wrong and all(url.startswith((f"http://{address}", "data:")) for url in requests)
        phone.wait_for_selector("#drop:not(.busy)")
        phone.set_input_files("#file", tmp_path / "text.png")
        phone.wait_for_selector("#error:not([hidden])")
        assert phone.inner_text("#error").startswith("the picture: damaged or no image")
        wrong.clear()
        wide = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme="light")
        wide.goto(f"http://{address}")
        assert wide.evaluate("document.documentElement.scrollWidth") == 1200
        assert "good for 11 more pictures" in wide.inner_text("#where:has-text('pictures')")
    asked = runner(capsys)("private", "ask", tmp_path / "photo.jpg", "--fit", *where, "--json")
    running.stop()
    assert json.loads(asked.out)["images"][0]["class"] == found
