"""What one can do on a report: click a bar, enlarge an image, blink, look along the order of the images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from congeal import align

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def ids(page: Page) -> list[str]:
    return page.eval_on_selector_all(".gallery figure:not(.hidden)", "cards => cards.map(c => c.dataset.id)")


def looks(what: Locator) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(what.screenshot())).convert("RGB")).astype(int)


# ---- bars


def test_a_bar_shows_its_images(report: Page, width: str) -> None:
    bar = report.locator('[data-name="Shift to the right"] .column').last
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    assert box is not None
    at = box["x"] + box["width"] / 2, box["y"] + 5  # above a low bar: the whole column can be hit
    report.touchscreen.tap(*at) if width == "phone" else report.mouse.click(*at)
    inside = int(bar.get_attribute("data-count") or 0)
    assert len(ids(report)) == inside < 13
    said = report.inner_text("[data-control=chosen]")
    assert said.startswith(f"Shift to the right: {inside} image")
    assert "px or more" in said
    assert bar.get_attribute("aria-pressed") == "true"
    report.click("[data-control=chosen] button")
    assert len(ids(report)) == 13
    assert not report.locator("[data-control=chosen]").is_visible()


def test_bars_work_with_keys_and_all_of_them_hold_all_images(report: Page) -> None:
    bars = report.locator('[data-name="Likeness to the mean"] .column')
    bars.first.focus()
    report.keyboard.press("ArrowRight")
    assert bars.nth(1).evaluate("column => column === document.activeElement")
    report.keyboard.press("Enter")
    assert len(ids(report)) == int(bars.nth(1).get_attribute("data-count") or 0)
    report.keyboard.press("Enter")
    assert len(ids(report)) == 13, "the same bar again lets go"
    seen: list[str] = []
    for k in range(bars.count()):
        bars.nth(k).focus()
        report.keyboard.press(" ")
        seen += ids(report)
    assert sorted(seen) == sorted(["odd.png", *(f"thing {i}.png" for i in range(12))])


# ---- enlarging


def side(page: Page) -> str:
    return page.inner_text("dialog [data-part=side]")


def test_an_image_is_enlarged_and_blinks(report: Page, width: str) -> None:
    opener = report.locator(".gallery figure[data-id='thing 3.png'] .pair")
    opener.scroll_into_view_if_needed()
    opener.tap() if width == "phone" else opener.click()
    assert report.inner_text("dialog [data-part=id]") == "thing 3.png"
    for shown in ("before", "after"):
        report.wait_for_function(f"document.querySelector('dialog [data-part=side]').textContent === '{shown}'")
    report.click("dialog [data-do=before]")
    before = looks(report.locator("dialog .screen"))
    assert report.locator("dialog [data-part=image]").get_attribute("alt") == "thing 3.png before alignment"
    report.click("dialog [data-do=after]")
    after = looks(report.locator("dialog .screen"))
    assert before.shape == after.shape
    assert np.abs(before - after)[60:].max() > 50
    assert min(after.shape[:2]) > 200, "it is large"
    box, view = report.locator("dialog").bounding_box(), report.viewport_size
    assert box is not None
    assert view is not None
    assert box["width"] <= view["width"]
    report.click("dialog [data-do=close]")
    assert not report.locator("dialog").is_visible()


def test_enlarging_works_with_keys(report: Page) -> None:
    report.locator(".worst .pair").first.focus()
    report.keyboard.press("Enter")
    assert report.inner_text("dialog [data-part=id]") == "odd.png"
    assert "failed" in report.inner_text("dialog [data-part=words]")
    report.keyboard.press("Space")
    first = side(report)
    report.keyboard.press("Space")
    assert {first, side(report)} == {"before", "after"}
    report.keyboard.press("ArrowRight")
    second = report.inner_text("dialog [data-part=id]")
    assert second.startswith("thing")
    report.keyboard.press("ArrowLeft")
    report.keyboard.press("ArrowLeft")
    assert report.inner_text("dialog [data-part=id]") not in ("odd.png", second), "round to the last"
    report.keyboard.press("b")
    assert report.locator("dialog [data-do=blink]").get_attribute("aria-pressed") == "true"
    report.keyboard.press("Escape")
    assert not report.locator("dialog").is_visible()
    assert "pair" in report.evaluate("document.activeElement.className"), "back on the page, at the image"


def test_nothing_blinks_for_those_who_do_not_want_it(report: Page) -> None:
    report.emulate_media(reduced_motion="reduce")
    report.locator(".gallery .pair").first.click()
    assert report.locator("dialog [data-do=blink]").get_attribute("aria-pressed") == "false"
    assert side(report) == "after"


def test_the_worst_come_with_a_reason(report: Page) -> None:
    assert report.locator(".worst figure").count() == 5
    first = report.locator(".worst figure").first
    assert first.get_attribute("data-id") == "odd.png"
    assert "its pose makes no sense" in first.inner_text()


# ---- the order of the images


def test_a_stack_that_drifts_shows_it(page: Page, width: str, tmp_path: Path) -> None:
    y, x = np.mgrid[:40, :60]
    frames = np.stack([np.exp(-(((x - 15 - 1.5 * i) / 6) ** 2) - ((y - 20) / 4) ** 2) for i in range(20)])
    stack = (300 + 900 * frames).astype(np.uint16)
    result = align(stack, tmp_path / "run", method="lsc", motion="translation", size=40, quiet=True)
    page.goto(result.report.as_uri())
    chart = page.locator("#drift ~ .charts svg").first
    assert chart.is_visible(), "neighbours move alike, so it is not folded away"
    label = chart.get_attribute("aria-label") or ""
    assert "to the right" in label
    assert "down" in label
    drawn = chart.locator("polyline").first.get_attribute("points") or ""
    points = np.array([point.split(",") for point in drawn.split()], dtype=float)
    assert len(points) == 20
    assert (np.diff(points[:, 1]) > 0).mean() > 0.9, "the shift to the right falls from frame to frame"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_unordered_set_keeps_its_order_to_itself(report: Page) -> None:
    chart = report.locator("details .charts svg").first
    assert not chart.is_visible()
    report.click("details summary")
    assert chart.is_visible()
