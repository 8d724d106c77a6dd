"""Images that did not start where the others did are found, and nobody else is moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import skimage.data

from congeal import DeepCongealing, open_images
from congeal.geometry import map_points
from congeal.methods.deep import rescue

BOX, ASTRAY = 96, 5
"""Side of the boxes that faces are expected in, in pixels, and the image whose box lies beside the face."""


def faces(noise: float) -> tuple[Any, np.ndarray]:
    """Photographs of one face, each in light and with spots and noise of its own, and with a box; and a point of it."""
    rng = np.random.default_rng(0)
    portrait = skimage.data.astronaut().mean(2)[20:220, 120:320]
    images, boxes = [], []
    for i in range(24):
        spots = rng.normal(0, 1, (12, 12)).repeat(17, 0).repeat(17, 1)[:200, :200]
        shot = (portrait - 128) * rng.uniform(0.4, 1.0) + 128 + 25 * spots + rng.normal(0, noise, portrait.shape)
        images.append(shot.clip(0, 255).astype(np.uint8))
        shift = rng.normal(0, 3, 2) + (np.array([28.0, -14.0]) if i == ASTRAY else 0)
        box = np.eye(3)
        box[:2, 2] = -(np.array([54.0, 46.0]) + shift)
        boxes.append(box)
    source = open_images(np.stack(images))
    source.initial, source.initial_size = np.stack(boxes), (BOX, BOX)
    return source, np.array([[104.0, 102.0]])


def off(model: DeepCongealing, eye: np.ndarray) -> np.ndarray:
    """(N,) how far a point of the face lies from where it lies in most images, in pixels."""
    found = map_points(model.transforms_.matrices, np.broadcast_to(eye, (24, 1, 2)))[:, 0]
    return np.linalg.norm(found - np.median(found, 0), axis=1)


@pytest.mark.parametrize(("noise", "way"), [(5.0, "COPIES"), (30.0, "PHOTOGRAPHS")])
def test_a_box_beside_the_face_is_forgiven(noise: float, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, eye = faces(noise)
    found = off(DeepCongealing(motion="similarity").fit(source), eye)
    assert found.max() < 1, "the one that started elsewhere included"
    monkeypatch.setattr(rescue, way, replace(getattr(rescue, way), lost=-1.0))
    without = off(DeepCongealing(motion="similarity").fit(source), eye)
    assert without[ASTRAY] > 10
    assert np.delete(without, ASTRAY).max() < 1
