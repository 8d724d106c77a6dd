"""report.html in a real browser, opened as a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import deciding
from blobs import blob
from congeal import align

if TYPE_CHECKING:
    from playwright.sync_api import Page


def ids(page: Page) -> list[str]:
    return page.eval_on_selector_all(".gallery figure:not(.hidden)", "cards => cards.map(c => c.dataset.id)")


def looks(page: Page, selector: str | None = None) -> np.ndarray:
    data = page.screenshot() if selector is None else page.locator(selector).first.screenshot()
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def test_it_is_not_blank_and_fits_the_screen(report: Page, width: str) -> None:
    shown = looks(report)
    assert shown.std() > 20
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 50
    assert report.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_images_can_be_sorted_by_how_sure_they_are(
    page: Page, width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deciding.register(monkeypatch)
    page.goto(align(blob(), tmp_path / "run", method="deciding", size=16, quiet=True).report.as_uri())
    assert page.locator("#confidence").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.select_option('[data-control="sort"]', "unsure")
    assert ids(page)[0] == "3"
    assert ids(page)[-1] == "0", "the one whose error bar is not known"
    page.fill('[data-control="search"]', "unsure")
    assert ids(page) == ["3"]


def test_every_image_loads(report: Page) -> None:
    sizes = report.eval_on_selector_all("img", "all => all.map(i => i.complete ? i.naturalWidth : 0)")
    assert len(sizes) == 4 + 2 * (5 + 13) + 1, "the last is the window for enlarging, empty until it opens"
    assert min(sizes[:-1]) > 0


def test_slider_moves_with_keys_mouse_and_touch(report: Page, width: str) -> None:
    slider = report.locator(".slider input").first
    before = looks(report, ".slider .stage")
    slider.focus()
    for _ in range(20):
        report.keyboard.press("ArrowRight")
    assert slider.input_value() == "70"
    assert report.eval_on_selector(".slider", "s => s.style.getPropertyValue('--at')") == "70%"
    moved = looks(report, ".slider .stage")
    assert np.abs(before - moved).max() > 50
    box = slider.bounding_box()
    assert box is not None
    at = box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2
    report.touchscreen.tap(*at) if width == "phone" else report.mouse.click(*at)
    assert 12 <= int(slider.input_value()) <= 28
    report.keyboard.press("Home")
    after_only = looks(report, ".slider .stage")
    report.keyboard.press("End")
    before_only = looks(report, ".slider .stage")
    assert np.abs(after_only - before_only)[40:].max() > 50


def test_flagged_come_first_and_sorting_works(report: Page) -> None:
    first = ids(report)
    assert first[0] == "odd.png"
    assert len(first) == 13
    scores = "cards => cards.map(c => Number(c.dataset.score))"
    report.select_option("[data-control=sort]", "best")
    best = report.eval_on_selector_all(".gallery figure", scores)
    assert best == sorted(best, reverse=True)
    report.select_option("[data-control=sort]", "score")
    assert report.eval_on_selector_all(".gallery figure", scores) == best[::-1]
    report.select_option("[data-control=sort]", "id")
    assert ids(report) == ["odd.png", *(f"thing {i}.png" for i in range(12))]


def test_find_and_show(report: Page) -> None:
    report.fill("[data-control=search]", "thing 1")
    assert sorted(ids(report)) == ["thing 1.png", "thing 10.png", "thing 11.png"]
    assert report.inner_text("[data-control=count]") == "3 of 13"
    report.fill("[data-control=search]", "")
    report.select_option("[data-control=view]", "after")
    assert report.locator(".gallery img.after").first.is_visible()
    assert not report.locator(".gallery img.before").first.is_visible()


def test_the_gallery_is_in_colour(report: Page) -> None:
    shown = looks(report, ".gallery figure[data-id='thing 0.png'] img.after")
    assert (shown[..., 0] - shown[..., 1]).max() > 100  # the thing is red
    assert (shown[..., 2] - shown[..., 1]).max() > 100  # and blue


def test_dark_and_light(report: Page) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    report.emulate_media(color_scheme="dark")
    dark = report.evaluate(paper)
    report.emulate_media(color_scheme="light")
    light = report.evaluate(paper)
    assert dark != light
    report.click(".theme")
    assert report.evaluate(paper) == dark
    report.click(".theme")
    assert report.evaluate(paper) == light


def test_it_tells_the_whole_story(report: Page) -> None:
    text = report.inner_text("body")
    for words in (
        *("APSNR", "energy ratio", "mean scale", "Step by step", "Skipped images", "broken <one>.png"),
        *(
            "Rotation, clockwise",
            "Scale",
            "How far the corners moved",
            "Shift to the right",
            "congeal align 'my photos' -o run",
        ),
        *("motion = similarity", "torch", "Python"),
    ):
        assert words in text, words
    assert report.locator("svg polyline").count() >= 2
    assert report.locator("svg rect.bar").count() > 20


def test_keyboard_reaches_everything(report: Page) -> None:
    seen = []
    for _ in range(45):
        report.keyboard.press("Tab")
        seen.append(report.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
    for what in (
        'class="skip"',
        'class="pair"',
        'class="column"',
        'class="theme"',
        'type="range"',
        'data-control="sort"',
        'data-control="search"',
    ):
        assert any(what in one for one in seen), what
