"""Images that start mirrored: methods see them upright, transforms lead back to the originals."""

from __future__ import annotations

import numpy as np
import pytest

import congeal
from congeal.geometry import map_points, normalise
from congeal.geometry.orientation import all_upright_from_source, make_upright, mirrored
from congeal.images import prepare
from congeal.images.sources.views import SourceView
from congeal.opening import open_images


@pytest.fixture
def pictures() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (6, 20, 20, 3), dtype=np.uint8)


def test_mirrored_start_gives_upright_pixels_and_leads_back(pictures: np.ndarray) -> None:
    ways = np.array([0, 4, 0, 4, 4, 0])
    start = all_upright_from_source(ways, np.full((6, 2), 20))
    stack = prepare(open_images(pictures), size=20, init=start, init_size=(20, 20))
    shown = np.stack([make_upright(one, way) for one, way in zip(pictures, ways, strict=True)])
    assert np.allclose(stack.images(np.arange(6)).numpy() * 255, np.moveaxis(shown, -1, 1), atol=1e-4)
    assert (np.linalg.det(stack.start) > 0).all()
    assert np.allclose(stack.aligned_from_source(stack.start), start)
    assert mirrored(stack.to_transforms(stack.start).matrices).tolist() == (ways == 4).tolist()


@pytest.mark.parametrize("shape", [(20, 20), (12, 30)])
def test_turned_images_of_any_shape(shape: tuple[int, int]) -> None:
    pictures = np.random.default_rng(1).integers(0, 255, (8, *shape), dtype=np.uint8)
    source = SourceView(open_images(pictures), orientation=np.arange(8))
    stack = prepare(source, size=10)
    found = stack.to_transforms(stack.start)
    assert found.source_sizes.tolist() == [list(shape)] * 8
    centre = np.array([[(shape[1] - 1) / 2, (shape[0] - 1) / 2]])
    middle = (np.array(stack.aligned_size[::-1]) - 1) / 2
    assert np.allclose(map_points(found.matrices, centre)[:, 0], middle)


def test_mirrored_copies_come_back_with_a_negative_determinant() -> None:
    digits = np.stack([congeal.open_images("digits:3").read(i).pixels[..., 0] for i in range(30)])
    ways = np.where(np.arange(30) % 3 == 0, 4, 0)
    given = np.stack([make_upright(one, way) for one, way in zip(digits, ways, strict=True)])
    start = all_upright_from_source(ways, np.full((30, 2), 28))
    plain = congeal.LSC(size=28, random_state=0).fit(digits)
    turned = congeal.LSC(size=28, random_state=0)
    aligned = turned.fit_transform(given, init=start)
    assert mirrored(turned.transforms_.matrices).tolist() == (ways == 4).tolist()
    assert np.allclose(turned.transforms_.matrices, normalise(plain.transforms_.matrices @ start), atol=1e-4)
    assert np.abs(aligned.astype(int) - plain.fit_transform(digits).astype(int)).max() <= 1
