"""What a fitted model and its quality show of themselves in a notebook."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

import congeal
from blobs import blob
from congeal import LSC
from congeal.evaluation.quality import Preview, Thumbnail, notebook_page


@pytest.fixture(scope="module")
def model() -> LSC:
    images = blob(10)
    images[4] = images[4, ::-1, ::-1].copy()
    return LSC(size=16, motion="translation").fit(images)


def pictures(shown: str) -> list[np.ndarray]:
    uris = re.findall(r'src="data:image/png;base64,([^"]+)"', shown)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))) for one in uris]


@pytest.mark.parametrize("what", ["model", "quality"])
def test_before_after_words_and_the_worst(model: LSC, what: str) -> None:
    shown = (model if what == "model" else model.quality_)._repr_html_()
    assert shown is not None
    seen = pictures(shown)
    assert len(seen) == 2 + 2 * 5
    assert seen[0].shape == seen[1].shape == (16, 16)
    assert seen[1].max() > seen[0].max(), "the mean got sharper"
    for words in ("mean before", "mean after", "Likeness of each image", "before, ", "Least like the others"):
        assert words in shown
    assert shown.count("alt=") == len(seen)
    assert not re.search(r"https?://|<script", shown)
    worst = int(np.argmin(np.where(model.transforms_.ok, model.transforms_.score + 2, model.transforms_.score)))
    assert f"{model.transforms_.ids[worst]} before alignment" in shown


def test_the_model_says_what_it_is(model: LSC) -> None:
    shown = model._repr_html_()
    assert shown is not None
    assert "LSC(" in shown
    assert "translation motion" in shown
    assert LSC()._repr_html_() is None, "nothing to show yet"


def test_a_model_from_a_file_has_no_pictures(model: LSC, tmp_path: object) -> None:
    path = f"{tmp_path}/model.safetensors"
    model.save(path)
    shown = congeal.load(path)._repr_html_()
    assert shown is not None
    assert "transform aligns new images" in shown
    assert not pictures(shown)


def test_pictures_are_in_no_file_of_numbers(model: LSC) -> None:
    assert "preview" not in model.quality_.as_dict()
    assert "PNG" not in repr(model.quality_)


def test_names_do_no_harm() -> None:
    risky = Thumbnail('<script>"&', "outlier", float("nan"), b"", b"")
    shown = notebook_page("<b>", ["<i>"], Preview(b"", b"", 16, (risky,)))
    assert "<script>" not in shown
    assert "<i>" not in shown
    assert 'alt="&lt;script&gt;&quot;&amp; before' in shown
