"""The report of photographs that started at their faces: its gallery shows aligned originals, upright and in colour."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from congeal import align
from portraits import NO_FACE, SHOTS, name

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


@pytest.fixture(scope="module")
def faces_run(portraits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces-page") / "run"
    align(portraits, folder, init="faces", method="lsc", motion="similarity", quiet=True)
    return folder


def seen(what: Locator) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(what.screenshot())).convert("RGB")).astype(float)


def test_gallery_shows_faces_in_colour(page: Page, faces_run: Path) -> None:
    page.goto((faces_run / "report.html").as_uri())
    cards = page.locator(".gallery figure")
    assert cards.count() == len(SHOTS) + 1
    pictures = []
    for i in range(len(SHOTS)):
        # the last picture of a card is the aligned one
        shown = seen(page.locator(f'.gallery figure[data-id="{name(i)}"] img').last)
        red, _, blue = shown[shown.shape[0] // 4 : -shown.shape[0] // 4].mean((0, 1))
        assert red > blue + 15, "skin, not grey"
        pictures.append(np.asarray(Image.fromarray(shown.astype(np.uint8)).resize((48, 48))).astype(float))
    spread = np.std(pictures, axis=0).mean()
    assert spread < 12, "one face, however the camera was held"
    assert page.locator("#faceless + p + ul li").all_inner_texts() == [NO_FACE]
