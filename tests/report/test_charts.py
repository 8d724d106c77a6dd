"""Charts, reasons and contrast of the report."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from congeal import align
from congeal.report.charts import BINS, bin_of, histogram, lines, ticks
from congeal.report.motion import is_ordered
from congeal.report.page import contrast_of, duration, picture
from congeal.report.run_page import reasons


def test_low_contrast_is_stretched_and_the_rest_left_alone(tmp_path: Path) -> None:
    _, x = np.mgrid[:40, :40]
    pale = (100 + x / 2).astype(np.uint8)
    pale[:, :3] = 0  # outside of the photograph
    Image.fromarray(pale).save(tmp_path / "pale.png")
    Image.fromarray((6 * x).astype(np.uint8)).save(tmp_path / "full.png")
    stretch = contrast_of([tmp_path / "pale.png"], dark_ground=False)
    assert 95 < stretch.black < 105
    assert 115 < stretch.white < 125
    shown = picture(tmp_path / "pale.png", contrast=stretch)
    assert shown is not None
    seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown["uri"].partition(",")[2]))))
    assert seen[:, 4:].min() < 40
    assert seen.max() > 215
    assert not contrast_of([tmp_path / "full.png"], dark_ground=False).stretched
    assert contrast_of([tmp_path / "pale.png"], dark_ground=True).black == 0
    assert not contrast_of([tmp_path / "none.png"], dark_ground=True).stretched
    Image.fromarray(pale // 8).save(tmp_path / "dim.png")
    assert contrast_of([tmp_path / "dim.png", tmp_path / "none.png"], dark_ground=True).gain > 10


def test_one_hot_pixel_does_not_make_a_set_of_16_bits_black(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    _, x = np.mgrid[:32, :32]
    images = np.stack([300 + 20 * ((x + i) % 32) + rng.integers(0, 9, (32, 32)) for i in range(6)]).astype(np.uint16)
    images[:, 3, 3] = 65_000
    quick = {"iterations": (1, 1, 1)}
    result = align(images, tmp_path / "run", method="lsc", motion="translation", params=quick, quiet=True)
    mean = np.asarray(Image.open(result.folder / "mean.png"))
    assert len(np.unique(mean)) > 40, "not a handful of grey levels"
    assert np.quantile(mean, 0.9) > 100


# ---- charts


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.0, 10.0, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(-1.3, 1.1, 4) == [-1, 0, 1]
    assert ticks(3.0, 3.0, 4) == [3.0]
    assert ticks(0.98, 1.02, 4) == [0.98, 0.99, 1.0, 1.01, 1.02]


def test_one_wild_image_does_not_squeeze_the_others_into_one_bar() -> None:
    values = np.append(np.random.default_rng(0).normal(5, 1, 99), 3000.0)
    chart = histogram("corners", values, "px", 0.0)
    assert chart is not None
    assert len(chart["bars"]) > 10
    assert sum(bar["count"] for bar in chart["bars"]) == 100
    assert bin_of(chart, 3000.0) == BINS - 1
    assert bin_of(chart, float("nan")) is None


def test_bars_and_bins_agree() -> None:
    values = np.random.default_rng(1).normal(0, 1, 500)
    chart = histogram("shift", values, "px", 0.0)
    assert chart is not None
    counts = np.bincount([bin_of(chart, v) or 0 for v in values], minlength=BINS)
    assert {bar["bin"]: bar["count"] for bar in chart["bars"]} == {k: n for k, n in enumerate(counts.tolist()) if n}


def test_lines_keep_every_jump() -> None:
    values = np.zeros(10_000)
    values[7_777] = 50.0
    chart = lines("Shift", "px", np.arange(10_000.0), {"right": values})
    assert chart is not None
    points = np.array([p.split(",") for p in chart["series"][0]["points"].split()], dtype=float)
    assert len(points) < 500
    assert points[:, 1].min() == 8
    assert lines("Shift", "px", np.arange(3.0), {"right": np.full(3, np.nan)}) is None


def test_an_order_is_told_from_none() -> None:
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=60))
    assert is_ordered(walk)
    assert is_ordered(rng.normal(size=60), walk)
    assert not any(is_ordered(rng.normal(size=n)) for n in (5, 9, 20, 60, 500))
    assert not is_ordered(np.ones(50))


# ---- words


USUAL = {"score": (0.9, 0.02), "uncertainty": (0.2, 0.05), "corners": (5.0, 1.0), "out_of_frame": (0.05, 0.02)}


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ({"status": "outlier", "score": 0.3}, "likeness 0.30, where 0.90 is usual"),
        ({"status": "failed", "score": None}, "makes no sense"),
        ({"status": "blank", "score": 0.0}, "nothing to see"),
        ({"status": "ok", "score": 0.9, "unsure": True, "uncertainty": 2.0}, "± 2.0 px, where ± 0.2 px is usual"),
        ({"status": "ok", "score": 0.9, "out_of_frame": 0.6}, "60 % of the frame"),
        ({"status": "ok", "score": 0.9, "moved": {"corners": 40.0}}, "by 40 px, where 5 px is usual"),
        ({"status": "ok", "score": 0.8}, "Among the least like the mean"),
    ],
)
def test_reasons_are_words_with_numbers(card: dict[str, object], says: str) -> None:
    assert says in " ".join(reasons(card, USUAL))


def test_times_are_for_people() -> None:
    shown = [duration(seconds) for seconds in (None, 0.04, 9.96, 75.2, 200, 7500)]
    assert shown == ["–", "0.0 s", "10 s", "75 s", "3 min 20 s", "2 h 5 min"]
