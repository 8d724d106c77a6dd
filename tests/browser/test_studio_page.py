"""The studio from end to end: mark the mean, see it on the originals, exclude, save, come back, propagate."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from opened_studio import enter
from PIL import Image

from congeal import Transforms, propagate_mask, propagate_points
from congeal.studio import Studio

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def studio(run: Path) -> Iterator[Studio]:
    """Named before `page` in a test, so that it outlives the page: a page still loading pictures would see it go."""
    with Studio(run) as server:
        yield server
    for path in server.folder.glob("*"):
        path.unlink()


def click_mean(page: Page, x: float, y: float) -> None:
    """Click at aligned pixel (x, y)."""
    box = page.locator("#marks").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + (x + 0.5) * box["width"] / 80, box["y"] + (y + 0.5) * box["height"] / 60)


def wait_for(page: Page, selector: str, text: str) -> None:
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(text)


def wait_for_saved(page: Page) -> None:
    from playwright.sync_api import expect

    expect(page.locator("#said")).to_contain_text("saved to ")


def canvas(page: Page, id: str) -> np.ndarray:
    """(h, w, 4) what is drawn over one original; the frame is awaited first."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    uri = page.eval_on_selector(f".original[data-id='{id}'] canvas", "c => c.toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGBA")).astype(int)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_points_land_where_the_transforms_say(studio: Studio, page: Page, run: Path) -> None:
    enter(page, studio)
    click_mean(page, 40, 30)
    found = Transforms.load(run / "transforms.csv")
    for id in ("thing 0.png", "thing 5.png"):
        drawn = canvas(page, id)
        y, x = np.nonzero(drawn[..., 3] > 128)
        assert len(x) > 20
        expected = found.matching([id]).apply_points([[40.0, 30.0]], inverse=True)[0, 0]
        zoom = drawn.shape[1] / 80
        # a screen pixel of the mean is a fraction of an aligned pixel; half of one is enough for the eye
        assert np.allclose([x.mean(), y.mean()], (expected + 0.5) * zoom - 0.5, atol=0.5 * zoom)


def test_mark_exclude_save_and_come_back(studio: Studio, page: Page, run: Path, tmp_path: Path) -> None:
    enter(page, studio)
    click_mean(page, 40, 30)
    click_mean(page, 55, 20)
    page.locator("#points input[data-key=name]").first.fill("middle")
    page.locator("#points input[data-key=x]").first.fill("41.5")
    page.click("[data-tool=paint]")
    click_mean(page, 30, 40)
    assert (canvas(page, "thing 3.png")[..., 3] == 128).sum() > 100
    page.click(".original[data-id='odd.png'] button")
    assert page.inner_text("#said") == "not saved yet"
    page.keyboard.press("Control+s")
    wait_for_saved(page)

    saved = rows(run / "studio" / "points.csv")
    assert [row["name"] for row in saved] == ["middle", "2"]
    assert float(saved[0]["x"]) == 41.5
    assert abs(float(saved[1]["y"]) - 20) < 0.3
    assert rows(run / "studio" / "excluded.csv") == [{"id": "odd.png"}]
    mask = np.asarray(Image.open(run / "studio" / "mask.png"))
    assert mask.shape == (360, 480)
    assert set(np.unique(mask)) == {0, 255}

    # what was saved is what 'propagate' takes
    points = propagate_points(run, run / "studio" / "points.csv", exclude=run / "studio" / "excluded.csv")
    assert points.xy.shape == (12, 2, 2)
    folder = propagate_mask(run, run / "studio" / "mask.png", tmp_path)
    assert np.asarray(Image.open(folder / "thing 3.png")).any()

    page.goto("about:blank")
    enter(page, studio)
    assert page.locator("#points input[data-key=name]").first.input_value() == "middle"
    assert page.locator(".original.excluded").get_attribute("data-id") == "odd.png"
    assert (canvas(page, "thing 3.png")[..., 3] == 128).sum() > 100
    page.click("#clear-mask")
    page.click("#clear-points")
    page.click("#save")
    wait_for_saved(page)
    assert not (run / "studio" / "mask.png").exists()
    assert not (run / "studio" / "points.csv").exists()


def test_erasing_takes_paint_away(studio: Studio, page: Page) -> None:
    enter(page, studio)
    page.click("[data-tool=paint]")
    click_mean(page, 40, 30)
    assert (canvas(page, "thing 1.png")[..., 3] > 0).any()
    page.click("[data-tool=erase]")
    page.locator("#brush").fill("40")
    click_mean(page, 40, 30)
    assert not (canvas(page, "thing 1.png")[..., 3] > 0).any()


def test_filter_by_score_and_flag(studio: Studio, page: Page, run: Path) -> None:
    enter(page, studio)
    found = Transforms.load(run / "transforms.csv")
    assert page.locator(".original").count() == 13
    page.fill("#low", "0.9")
    page.locator("#low").blur()
    expected = int((found.score >= 0.9).sum())
    wait_for(page, "#count", f"{expected} images")
    assert page.locator(".original").count() == expected
    page.fill("#low", "")
    page.locator("#low").blur()
    page.select_option("#show", "flagged")
    wait_for(page, "#count", "1 image")
    assert page.locator(".original").get_attribute("data-id") == "odd.png"


def test_two_points_with_one_name_are_not_saved(studio: Studio, page: Page, run: Path, trouble: list[str]) -> None:
    enter(page, studio)
    click_mean(page, 20, 20)
    page.click("#add")
    page.locator("#points input[data-key=name]").nth(1).fill("1")
    with page.expect_response("**/save") as answer:
        page.click("#save")
    assert answer.value.status == 422
    wait_for(page, "#said", "not saved: two points have one name; names must differ")
    assert not (run / "studio" / "points.csv").exists()
    assert len(trouble) == 1
    assert "422" in trouble.pop()  # the browser notes the refusal, and nothing else


def test_it_fits_the_screen(studio: Studio, page: Page, width: str) -> None:
    enter(page, studio)
    page.wait_for_load_state("networkidle")
    assert min(page.eval_on_selector_all("#mean, .original:first-child img", "all => all.map(i => i.naturalWidth)")) > 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
    assert shown.std() > 20
