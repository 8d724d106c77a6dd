"""The report of a run by features: mirrored images say so, and lines join what belongs together."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from congeal import align
from made_birds import made_birds

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def wild_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wild-page") / "run"
    align(made_birds(8, seed=3)[0], folder, features="lite0", mirror=True, write_aligned=False, quiet=True)
    return folder


def test_mirrored_images_say_so(page: Page, wild_run: Path, width: str) -> None:
    page.goto((wild_run / "report.html").as_uri())
    number = json.loads((wild_run / "metrics.json").read_text())["n_mirrored"]
    assert number > 0
    assert re.search(rf"Of the 8 images, {number} (is|are) mirrored\.", page.locator("header").inner_text())
    assert page.locator(".gallery .flag.laid").all_inner_texts() == ["mirrored"] * number
    page.fill('[data-control="search"]', "mirrored")
    assert page.locator(".gallery figure:not(.hidden)").count() == number
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_lines_join_two_pictures(page: Page, wild_run: Path) -> None:
    page.goto((wild_run / "report.html").as_uri())
    drawings = page.locator(".matched svg")
    assert 1 <= drawings.count() <= 3
    for drawing in drawings.all():
        assert drawing.locator("image").count() == 2
        assert drawing.locator("line").count() >= 2
    # The first pair is a mirrored image and a plain one: from left to right, its lines change their order.
    ends = page.eval_on_selector_all(
        ".matched:first-child line", "lines => lines.map(l => ['x1', 'x2'].map(k => +l.getAttribute(k)))"
    )
    pairs = [(a, b) for a in ends for b in ends if a[0] < b[0]]
    assert sum(a[1] > b[1] for a, b in pairs) > 0.7 * len(pairs)
