"""A real browser for the pages: Debian's Chromium, headless, driven by Playwright, without any network.

Where there is no Chromium or no Playwright the tests skip and say so; `make test` installs both.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from congeal import align

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

QUIET = (
    "--no-sandbox",  # the tests may run as root, where Chromium has no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
)
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed (pip install playwright)"
    )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=list(QUIET))
        yield opened
        opened.close()


class Trouble(list[str]):
    """What a page complained about: console errors, exceptions, requests that left the machine."""

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: message.type in ("error", "warning") and self.append(message.text))
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("request", lambda request: self.look_at(request.url))

    def look_at(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:")):
            self.append(f"asked the network for {url}")


@pytest.fixture(params=list(WIDTHS))
def width(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


@pytest.fixture
def page(browser: Browser, trouble: Trouble, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh page, of desktop size unless the test asks for `width`; it fails the test if it had any trouble."""
    name = request.getfixturevalue("width") if "width" in request.fixturenames else "desktop"
    across, down = WIDTHS[name]
    opened = browser.new_page(viewport={"width": across, "height": down}, has_touch=name == "phone")
    opened.set_default_timeout(5000)
    trouble.watch(opened)
    yield opened
    opened.close()
    assert not trouble


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve colour pictures of one red-and-blue thing at different places, one of something else, one broken."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:60, :80]
    for i in range(12):
        across, down = 40 + rng.uniform(-6, 6), 30 + rng.uniform(-4, 4)
        red = np.exp(-(((x - across) / 14) ** 2) - ((y - down) / 7) ** 2)
        blue = np.exp(-(((x - across - 9) / 5) ** 2) - ((y - down) / 5) ** 2)
        Image.fromarray((255 * np.stack([red, 0 * red, blue], -1)).astype(np.uint8)).save(folder / f"thing {i}.png")
    checks = 255 * ((x // 10 + y // 10) % 2)
    Image.fromarray(np.stack([0 * checks, checks, 0 * checks], -1).astype(np.uint8)).save(folder / "odd.png")
    (folder / "broken <one>.png").write_text("not a picture")
    return folder


@pytest.fixture(scope="session")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "run"
    command = "congeal align 'my photos' -o run"
    align(photos, folder, method="lsc", motion="similarity", size=40, quiet=True, command=command)
    return folder


@pytest.fixture
def report(page: Page, run: Path) -> Page:
    """The report of `run`, opened."""
    page.goto((run / "report.html").as_uri())
    return page
