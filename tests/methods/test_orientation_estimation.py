"""Which images lie upside down, turned or mirrored, without a network; and that new images are told the same way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import congeal
from congeal.geometry.orientation import MIRROR, make_upright, orientation_of, orientations
from congeal.images import prepare
from congeal.methods.semantic.orientation_estimation import (
    UprightTemplate,
    classify_orientations,
    estimate_orientations,
)
from congeal.opening import open_images
from congeal.registration.features import robust_features
from made_birds import made_birds

ALL = orientations(mirror=True, turns=True)


def laid(pictures: np.ndarray, ways: np.ndarray) -> np.ndarray:
    """Pictures that these orientations make upright."""
    undo = np.where(ways >= MIRROR, ways, -ways % 4)  # a mirrored one undoes itself
    return np.stack([make_upright(one, int(way)) for one, way in zip(pictures, undo, strict=True)])


def turn_of(ways: np.ndarray) -> np.ndarray:
    """What is left of orientations where left and right look the same: the quarters that put the top on top."""
    return np.where(ways >= MIRROR, -ways % 4, ways)


def digits(which: int, n: int) -> np.ndarray:
    return np.stack([congeal.open_images(f"digits:{which}").read(i).pixels[..., 0] for i in range(n)])


def test_faces_end_upright(original_lfw: Path) -> None:
    files = sorted((original_lfw / "lfw" / "Jennifer_Capriati").glob("*.jpg"))[:30]
    faces = np.stack([np.asarray(Image.open(file).convert("RGB").resize((64, 64))) for file in files])
    ways = np.where(np.arange(30) % 3 == 0, np.resize([2, 4, 6], 30), 0)
    stack = prepare(open_images(laid(faces, ways)), size=64)
    found, upright = estimate_orientations(stack, robust_features("photo"), ALL)
    assert (turn_of(found) == turn_of(ways)).mean() >= 0.95
    assert (turn_of(found) == turn_of(ways))[ways % 4 > 0].all()
    assert upright.same == (MIRROR,)  # a face and its mirror image: nobody is mirrored on a guess
    assert (found < MIRROR).all()


@pytest.mark.parametrize(("which", "same"), [(7, set()), (3, {6}), (0, {2, 4, 6})])
def test_what_looks_the_same_is_left_alone(which: int, same: set[int]) -> None:
    stack = prepare(open_images(digits(which, 40)), size=28)
    found, upright = estimate_orientations(stack, robust_features("object"), ALL)
    assert set(upright.same) >= same
    assert (found == 0).mean() > 0.9
    if not same:
        assert not upright.same


def test_new_images_are_told_by_the_mean_of_the_set(tmp_path: Path) -> None:
    given, ways = digits(7, 50), np.resize([0, 2, 0, 4, 0, 7, 0], 50)
    old = prepare(open_images(laid(given[:40], ways[:40])), size=28)
    _, upright = estimate_orientations(old, robust_features("object"), ALL)
    upright.save(tmp_path / "upright.npz")
    again = UprightTemplate.load(tmp_path / "upright.npz")
    assert again.same == upright.same
    new = prepare(open_images(laid(given[40:], ways[40:])), size=28, layout=old.layout)
    together = classify_orientations(new, robust_features("object"), ALL, again)
    assert (together == ways[40:]).mean() >= 0.9
    alone = [classify_orientations(new.some(np.array([k])), robust_features("object"), ALL, again)[0] for k in range(3)]
    assert alone == together[:3].tolist()


def test_apply_brings_new_images_upright(tmp_path: Path) -> None:
    given, ways = digits(7, 50), np.resize([0, 2, 0, 4, 0, 7, 0], 50)
    pictures = laid(given, ways)
    options = {"write_aligned": False, "quiet": True}
    congeal.align(pictures[:40], tmp_path / "run", method="lsc", mirror=True, turns=True, **options)  # type: ignore[arg-type]
    new = congeal.apply(tmp_path / "run", pictures[40:], tmp_path / "new", **options)  # type: ignore[arg-type]
    assert (orientation_of(new.transforms.matrices) == ways[40:]).mean() >= 0.9
    assert new.metrics["n_mirrored"] > 0
    assert new.metrics["n_turned"] > 0
    plain = congeal.apply(tmp_path / "run", given[40:], tmp_path / "plain", **options)  # type: ignore[arg-type]
    assert plain.metrics["n_mirrored"] <= 1
    (tmp_path / "run" / ".work" / "orientation_template.npz").unlink()
    with pytest.raises(congeal.CongealError, match="has lost its orientation data"):
        congeal.apply(tmp_path / "run", given[40:], tmp_path / "other", **options)  # type: ignore[arg-type]


def test_apply_begins_at_features_where_the_run_did(tmp_path: Path) -> None:
    birds, flips, _ = made_birds(8, seed=2, side=64)
    options = {"write_aligned": False, "quiet": True}
    old = congeal.align(birds[:6], tmp_path / "run", method="lsc", start="features", mirror=True, **options)  # type: ignore[arg-type]
    new = congeal.apply(tmp_path / "run", birds[6:], tmp_path / "new", **options)  # type: ignore[arg-type]
    mirrored = np.concatenate([orientation_of(one.transforms.matrices, turns=False) for one in (old, new)]) >= MIRROR
    assert (mirrored == flips).all() or (mirrored == ~flips).all()
