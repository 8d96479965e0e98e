"""Screenshots of `deepshare private ui` and of a report, docs/figures/ui.png and report.png; needs Chromium."""

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from deepshare.files import write_atomically

CHROMIUM = "/usr/bin/chromium"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
NETWORK = "cifar100-resnet18w16-2288"
WIDTH, COLOURS = 900, 256
UNTIL = "h3:has-text('Shared gates')"  # the report is shown down to here


def main() -> None:
    """Write both."""
    _write("ui", _page_of_the_demo())
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.html")
        subprocess.run([sys.executable, "-m", "deepshare", "report", NETWORK, "-o", str(report)], check=True)
        _write("report", _top_of(report))


def _write(name: str, picture: bytes) -> None:
    small = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    write_atomically(FIGURES / f"{name}.png", file.getvalue())


def _page_of_the_demo() -> bytes:
    """Start the demo, and ask for a digit."""
    command = [sys.executable, "-m", "deepshare", "private", "ui", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            if process.stderr is None:
                raise AssertionError("its errors are piped")
            (address,) = re.findall(r"http://127\.0\.0\.1:\d+", next(line for line in process.stderr if "http" in line))
            return _screenshot(address)
        finally:
            process.terminate()


def _top_of(report: Path) -> bytes:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")
        page.goto(report.as_uri())
        box = page.locator(UNTIL).first.bounding_box()
        if box is None:
            raise AssertionError("the report has no plan")
        picture = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": box["y"] - 20})
        browser.close()
    return picture


def _screenshot(address: str) -> bytes:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")
        page.goto(address)
        page.locator("#samples button").nth(3).click()
        page.wait_for_selector("#class:not(:empty)")
        page.wait_for_selector("#drop:not(.busy)")
        page.locator("h1").click()  # no picture is marked as chosen
        picture = page.screenshot(full_page=True)
        browser.close()
    return picture


if __name__ == "__main__":
    main()
