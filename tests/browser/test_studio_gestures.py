"""What one can do with originals in the studio: enlarge, drag a point, take back, align again without some."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from opened_studio import enter, expect_said

from congeal import Transforms, propagate_points
from congeal.runs.folder import RunFolder
from congeal.runs.originals import run_transforms
from congeal.studio import Studio

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


FAR = np.array([2.0, 1.0])


@pytest.fixture
def studio(run: Path) -> Iterator[Studio]:
    with Studio(run) as server:
        yield server
    shutil.rmtree(run / "studio", ignore_errors=True)


def expect_count(what: Locator, count: int) -> None:
    from playwright.sync_api import expect

    expect(what).to_have_count(count)


def corrected(page: Page) -> Locator:
    return page.locator(".original", has_text="corrected")


def click_mean(page: Page, x: float, y: float) -> None:
    box = page.locator("#marks").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + (x + 0.5) * box["width"] / 80, box["y"] + (y + 0.5) * box["height"] / 60)


def drag(page: Page, canvas: str, start: np.ndarray, end: np.ndarray) -> None:
    """From one pixel of an original (80×60) to another."""
    page.locator(canvas).scroll_into_view_if_needed()
    box = page.locator(canvas).bounding_box()
    assert box is not None
    corner, scale = np.array([box["x"], box["y"]]), np.array([box["width"] / 80, box["height"] / 60])
    page.mouse.move(*(corner + (start + 0.5) * scale))
    page.mouse.down()
    page.mouse.move(*(corner + (0.5 * (start + end) + 0.5) * scale))
    page.mouse.move(*(corner + (end + 0.5) * scale))
    page.mouse.up()


def landed(run: Path, id: str, *, corrected: bool) -> np.ndarray:
    """Where the middle of the mean lies in an original."""
    found = run_transforms(RunFolder.existing(run), corrected=corrected)
    return found.matching([id]).apply_points([[40.0, 30.0]], inverse=True)[0, 0]


def test_an_original_is_enlarged(studio: Studio, page: Page, width: str) -> None:
    enter(page, studio)
    photo = page.locator(".original[data-id='thing 2.png'] .photo")
    photo.scroll_into_view_if_needed()
    photo.tap() if width == "phone" else photo.click()
    assert page.inner_text("#large-id") == "thing 2.png"
    assert page.locator("#large-image").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    box, view = page.locator("#large").bounding_box(), page.viewport_size
    assert box is not None
    assert view is not None
    assert box["width"] <= view["width"]
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#large-id") != "thing 2.png"
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#large-id") == "thing 2.png"
    page.keyboard.press("Escape")
    assert not page.locator("#large").is_visible()
    page.keyboard.press("Enter")  # the image it came from has the focus
    assert page.inner_text("#large-id") == "thing 2.png"


@pytest.mark.parametrize("where", ["gallery", "large"])
def test_a_dragged_point_settles_its_image(studio: Studio, page: Page, run: Path, where: str) -> None:
    enter(page, studio)
    click_mean(page, 40, 30)
    canvas, before = ".original[data-id='thing 4.png'] canvas", landed(run, "thing 4.png", corrected=False)
    if where == "large":
        page.locator(".original[data-id='thing 4.png'] .photo").press("Enter")
        canvas = "#large-marks"
    drag(page, canvas, before, before + FAR)
    expect_said(page, "Not saved yet")
    if where == "large":
        assert page.locator("#put-back").is_enabled()
        page.keyboard.press("Escape")
    assert "corrected" in page.locator(".original[data-id='thing 4.png']").inner_text()
    page.keyboard.press("Control+s")
    expect_said(page, "saved to ")
    assert "transforms.csv" in page.inner_text("#said")

    after = landed(run, "thing 4.png", corrected=True)
    assert np.hypot(*(after - before)) > 0.01, "it moved"
    assert np.hypot(*(after - before - FAR)) < 0.06 * 80, "and stayed near where it was put"
    own = Transforms.load(run / "studio" / "transforms.csv")
    assert list(own.ids) == ["thing 4.png"]
    points = propagate_points(run, [[40.0, 30.0]])
    row = list(points.ids).index("thing 4.png")
    assert np.allclose(points.xy[row, 0], after), "what propagate uses from then on"
    assert np.allclose(landed(run, "thing 5.png", corrected=True), landed(run, "thing 5.png", corrected=False))

    page.goto("about:blank")
    enter(page, studio)
    expect_count(corrected(page), 1)
    page.locator(".original[data-id='thing 4.png'] .photo").press("Enter")
    page.click("#put-back")
    page.keyboard.press("Escape")
    page.click("#save")
    expect_said(page, "saved to ")
    assert not (run / "studio" / "transforms.csv").exists()


def test_ctrl_z_takes_back_marks_exclusions_paint_and_drags(studio: Studio, page: Page, run: Path) -> None:
    enter(page, studio)
    assert page.locator("#undo").is_disabled()
    click_mean(page, 40, 30)
    page.click(".original[data-id='odd.png'] button")
    page.click("[data-tool=paint]")
    click_mean(page, 20, 20)
    before = landed(run, "thing 4.png", corrected=False)
    drag(page, ".original[data-id='thing 4.png'] canvas", before, before + FAR)
    expect_said(page, "Not saved yet")
    expect_count(corrected(page), 1)
    page.keyboard.press("Control+z")
    expect_count(corrected(page), 0)
    assert page.evaluate("painted") is True
    page.keyboard.press("Control+z")
    assert page.evaluate("painted") is False
    assert page.locator(".original.excluded").count() == 1
    page.keyboard.press("Control+z")
    expect_count(page.locator(".original.excluded"), 0)
    assert page.locator("#points li").count() == 1
    page.keyboard.press("Control+z")
    assert page.locator("#points li").count() == 0
    assert page.locator("#undo").is_disabled()
    page.keyboard.press("Control+Shift+z")
    page.click("#redo")
    assert page.locator("#points li").count() == 1
    expect_count(page.locator(".original.excluded"), 1)


def test_the_set_is_aligned_again_without_the_excluded(studio: Studio, page: Page, run: Path) -> None:
    enter(page, studio)
    assert page.locator("#realign").is_disabled()
    page.click(".original[data-id='odd.png'] button")
    assert page.inner_text("#realign") == "Re-align without this image"
    page.click("#realign")
    expect_said(page, "aligned again, 12 images", timeout=30_000)
    again = run / "studio" / "realigned-1"
    assert f"congeal studio {again}" in page.inner_text("#said")
    with (again / "skipped.csv").open() as file:
        assert {"id": "odd.png", "reason": "excluded"} in list(csv.DictReader(file))
    assert RunFolder.existing(again).config["params"] == RunFolder.existing(run).config["params"]
    with page.expect_navigation():
        page.click("#open")
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_selector(".original")
    assert page.locator(".original").count() == 12
    assert page.title().startswith("realigned-1")


def test_saved_says_where_and_what_next(studio: Studio, page: Page, run: Path) -> None:
    enter(page, studio)
    click_mean(page, 40, 30)
    page.keyboard.press("Control+s")
    expect_said(page, f"saved to {run / 'studio'}: points.csv, excluded.csv. Next:")
    assert f"congeal propagate {run} --points {run / 'studio' / 'points.csv'}" in page.inner_text("#said code")
