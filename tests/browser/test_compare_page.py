"""The page of a comparison, at the width of a desk and of a hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from congeal import compare
from congeal.files import read_json, write_json
from congeal.report.comparison import write_comparison
from congeal.runs.folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Page

WHY = "images must have a feature to match, and those of 'a/very/long/folder/name/of/some/photographs' have none; " * 2


@pytest.fixture(scope="module")
def compared(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods of which one collapsed, and one that failed with a long reason."""
    folder = tmp_path_factory.mktemp("compare") / "out"
    params = {name: {"iterations": (1, 1, 1)} for name in ("lsc", "lsc@loose")}
    compare(photos, ["lsc", "lsc@loose"], folder, size=24, params=params, quiet=True)
    rows = read_json(folder / "table.json")
    rows[1] |= {"collapsed": True, "verdict": "shrunk", "status": {"ok": 1, "outlier": 7, "failed": 5}}
    nothing = dict.fromkeys(rows[0]) | {"method": "sift", "collapsed": False, "n_images": 13}
    write_json(folder / "table.json", [*rows, {**nothing, "error": WHY}])
    write_comparison(RunFolder.existing(folder))
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_without_scrolling_sideways(page: Page, width: str, scheme: str, compared: Path) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto((compared / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    inside = "box => box.scrollWidth <= box.clientWidth + 1"
    assert page.locator(".scroll").first.evaluate(inside), "not even inside the table"
    for name in ("lsc", "lsc@loose", "sift"):
        assert page.locator(".numbers td", has_text=name).first.is_visible()
    label = page.locator(".numbers tbody tr").nth(1).locator("td").nth(3)
    assert label.get_attribute("data-label") == "likeness"
    heading = page.locator(".numbers thead")
    assert heading.is_visible() is (width == "desktop"), "on a phone each number carries its own label"


def test_it_says_what_is_worth_nothing(page: Page, compared: Path) -> None:
    page.goto((compared / "report.html").as_uri())
    assert page.locator(".numbers .struck").count() == 2
    words = page.inner_text("body")
    assert "Struck-out numbers are worth nothing" in words
    assert "7 unlike the others, 5 misplaced" in words
    assert "have none" in words
    alts = page.eval_on_selector_all("img", "all => all.map(one => one.alt)")
    assert "mean of the images aligned with lsc" in alts
    assert "spread of the images before alignment" in alts
