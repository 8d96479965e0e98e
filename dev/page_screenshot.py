"""Screenshot of `deepshare private ui`: `python dev/page_screenshot.py` writes docs/figures/ui.png; needs Chromium."""

import io
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from deepshare.files import write_atomically

CHROMIUM = "/usr/bin/chromium"
OUT = Path(__file__).parents[1] / "docs" / "figures" / "ui.png"
WIDTH, COLOURS = 900, 256


def main() -> None:
    """Start the demo, ask for a digit, and write what the page shows."""
    command = [sys.executable, "-m", "deepshare", "private", "ui", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            if process.stderr is None:
                raise AssertionError("its errors are piped")
            (address,) = re.findall(r"http://127\.0\.0\.1:\d+", next(line for line in process.stderr if "http" in line))
            picture = _screenshot(address)
        finally:
            process.terminate()
    small = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    write_atomically(OUT, file.getvalue())


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
