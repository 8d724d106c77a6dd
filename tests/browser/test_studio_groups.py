"""What one can do with the groups of a sorted pile in the studio: rename, merge, split, move, take back, re-align."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from opened_studio import enter, expect_said
from PIL import Image

from congeal import align, open_images
from congeal.studio import Studio

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def sorted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sorted")
    (folder / "pile").mkdir()
    for digit in "137":
        for i, image in enumerate(open_images(f"digits:{digit}").batch(np.arange(10))[..., 0]):
            Image.fromarray(image).save(folder / "pile" / f"{digit}-{i}.png")
    align(folder / "pile", folder / "run", method="lsc", groups=3, quiet=True)
    return folder / "run"


@pytest.fixture
def studio(sorted_run: Path) -> Iterator[Studio]:
    with Studio(sorted_run) as server:
        yield server
    shutil.rmtree(sorted_run / "studio", ignore_errors=True)


def said(page: Page, text: str, timeout: float = 20_000) -> None:
    expect_said(page, text, timeout)


def groups(page: Page) -> dict[str, int]:
    """What the cards say: name → images."""
    found = page.locator(".group").evaluate_all(
        "cards => cards.map(card => [card.querySelector('input[type=text]').value, "
        "parseInt(card.querySelector('label').textContent)])"
    )
    return {str(name): int(n) for name, n in found}


def saved(run: Path) -> Counter[str]:
    with (run / "studio" / "groups.csv").open() as file:
        return Counter(row["group"] for row in csv.DictReader(file))


def rename(page: Page, old: str, new: str) -> None:
    field = page.get_by_label(f"name of group {old}", exact=True)
    field.fill(new)
    field.press("Enter")


def save(page: Page) -> None:
    page.click("#save")
    said(page, "saved to")


def test_a_group_is_renamed_and_the_name_is_there_next_time(studio: Studio, page: Page, sorted_run: Path) -> None:
    enter(page, studio)
    before = groups(page)
    rename(page, "0", "my ones")
    rename(page, "1", "2")
    said(page, "there is a group 2 already")
    rename(page, "1", "")
    said(page, "a group needs a name")
    assert set(groups(page)) == {"my ones", "1", "2"}
    save(page)
    assert saved(sorted_run)["my ones"] == before["0"]
    page.reload()
    page.wait_for_selector(".group")
    assert set(groups(page)) == {"my ones", "1", "2"}


def test_groups_are_merged_and_taken_apart_again(studio: Studio, page: Page, sorted_run: Path) -> None:
    enter(page, studio)
    before = groups(page)
    assert page.locator("#merge").is_disabled()
    page.get_by_label("select 0", exact=True).check()
    page.get_by_label("select 2", exact=True).check()
    page.click("#merge")
    assert groups(page) == {"0": before["0"] + before["2"], "1": before["1"]}
    page.click("#undo")
    assert groups(page) == before
    page.click("#redo")
    save(page)
    assert saved(sorted_run)["0"] == before["0"] + before["2"]


def test_a_group_is_split(studio: Studio, page: Page, sorted_run: Path) -> None:
    enter(page, studio)
    before = groups(page)
    page.get_by_label("select 0", exact=True).check()
    page.get_by_label("select 1", exact=True).check()
    page.click("#merge")
    page.get_by_label("split 0", exact=True).click()
    said(page, "is split")
    after = groups(page)
    assert set(after) == {"0", "2", "0-2"}
    assert after["0"] + after["0-2"] == before["0"] + before["1"]
    assert min(after["0"], after["0-2"]) >= 5, "the two kinds part again"
    page.click("#undo")
    assert groups(page)["0"] == before["0"] + before["1"]


def test_an_image_is_moved_and_groups_are_shown_one_by_one(studio: Studio, page: Page, sorted_run: Path) -> None:
    enter(page, studio)
    before = groups(page)
    page.get_by_label("show 1", exact=True).click()
    page.wait_for_selector(f"#count:has-text('{before['1']} images')")
    assert page.locator(".original").count() == before["1"]
    assert page.locator("#mean").get_attribute("src") == "group/1"
    first = page.locator(".original").first
    id = first.get_attribute("data-id")
    first.locator("select").select_option(label="in no group")
    assert groups(page)["1"] == before["1"] - 1
    save(page)
    with (sorted_run / "studio" / "groups.csv").open() as file:
        assert {row["id"]: row["group"] for row in csv.DictReader(file)}[str(id)] == ""
    page.locator("#group").select_option("-1")
    page.wait_for_selector(f".original[data-id='{id}']")
    page.keyboard.press("Control+z")
    assert groups(page) == before


def test_the_pile_is_aligned_again_with_the_changed_groups(studio: Studio, page: Page, sorted_run: Path) -> None:
    enter(page, studio)
    assert page.locator("#realign").is_disabled()
    page.get_by_label("select 0", exact=True).check()
    page.get_by_label("select 1", exact=True).check()
    page.click("#merge")
    rename(page, "0", "both")
    page.click("#realign")
    said(page, "aligned again", timeout=60_000)
    again = sorted_run / "studio" / "realigned-1"
    assert [row["name"] for row in json.loads((again / "metrics.json").read_text())["groups"]] == ["both", "2"]
    assert "group both" in (again / "report.html").read_text()
    with (again / "transforms.csv").open() as file:
        assert Counter(row["group_name"] for row in csv.DictReader(file)) == saved(sorted_run)
    page.click("#open")
    page.wait_for_selector(".group[data-name='both']")


def test_groups_fit_the_screen(studio: Studio, page: Page, width: str) -> None:
    enter(page, studio)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        assert page.locator(".group").first.is_visible()
        assert page.locator(".original select").first.is_visible()
