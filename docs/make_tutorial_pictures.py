"""The pictures of the tutorials, and the screenshots of the README, from runs of the tutorials themselves.

python docs/make_tutorial_pictures.py means [NAME …]      mean before and after of each tutorial (or of those named)
python docs/make_tutorial_pictures.py screens             report and studio of the tutorial "photo-a-day"

The blocks of the pages are run in a folder that is removed afterwards. Screenshots need playwright and Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
RUNS = {"photo-a-day": "year", "microscope": "run", "lunar": "run", "forms": "run", "products": "shelf"}
"""Each tutorial, and the run folder it leaves."""
HEIGHT, GAP = 240, 8


def run_tutorial(name: str, folder: Path) -> Path:
    """Run the blocks of a page; gives its run folder."""
    from page_blocks import run_page

    run_page(HERE / "tutorials" / f"{name}.md", folder)
    return folder / RUNS[name]


def before_and_after(run: Path) -> Image.Image:
    pictures = [Image.open(path).convert("RGB") for path in (run / ".work" / "mean_before.png", run / "mean.png")]
    pictures = [p.resize((round(p.width * HEIGHT / p.height), HEIGHT), Image.Resampling.LANCZOS) for p in pictures]
    sheet = Image.new("RGB", (sum(p.width for p in pictures) + GAP, HEIGHT), "white")
    sheet.paste(pictures[0], (0, 0))
    sheet.paste(pictures[1], (pictures[0].width + GAP, 0))
    return sheet


def means(names: list[str]) -> None:
    for name in names or list(RUNS):
        with TemporaryDirectory() as folder:
            picture = before_and_after(run_tutorial(name, Path(folder)))
        picture.save(HERE / "images" / f"tutorial-{name}.jpg", quality=85)


def screens(names: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    from congeal.studio import Studio

    with TemporaryDirectory() as folder, sync_playwright() as driver:
        run = run_tutorial("photo-a-day", Path(folder))
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto((run / "report.html").as_uri())
        page.wait_for_timeout(500)
        page.screenshot(path=HERE / "images" / "screen-report.jpg", type="jpeg", quality=70)
        with Studio(run) as studio:
            page.goto(studio.url)
            page.wait_for_selector("html[data-ready=yes]")
            page.wait_for_selector(".original")
            page.wait_for_timeout(1000)
            page.screenshot(path=HERE / "images" / "screen-studio.jpg", type="jpeg", quality=70)
        browser.close()


if __name__ == "__main__":
    {"means": means, "screens": screens}[sys.argv[1]](sys.argv[2:])
