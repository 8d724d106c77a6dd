"""Images that did not start where the others did are found, and nobody else is moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import skimage.data

from congeal import JointAlignment, open_images
from congeal.geometry import map_points

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


def off(model: JointAlignment, eye: np.ndarray) -> np.ndarray:
    """(N,) how far a point of the face lies from where it lies in most images, in pixels."""
    found = map_points(model.transforms_.matrices, np.broadcast_to(eye, (24, 1, 2)))[:, 0]
    return np.linalg.norm(found - np.median(found, 0), axis=1)


@pytest.mark.parametrize("noise", [5.0, 30.0])
def test_a_box_beside_the_face_is_forgiven(noise: float) -> None:
    source, eye = faces(noise)
    found = off(JointAlignment(motion="similarity").fit(source), eye)
    assert found.max() < 1, "the one that started elsewhere included"
    without = off(JointAlignment(motion="similarity", restarts=0).fit(source), eye)
    assert without[ASTRAY] > 10
    assert np.delete(without, ASTRAY).max() < 1


def facades() -> tuple[np.ndarray, np.ndarray]:
    """Shots of a wall with rows of windows, the last one shifted by about a window; and where its corner is in each."""
    rng = np.random.default_rng(1)
    wall = 90 + 25 * rng.standard_normal((25, 32)).repeat(16, 0).repeat(16, 1)
    for top in range(20, 380, 48):
        for left in range(20, 490, 48):
            wall[top : top + 26, left : left + 22] = 30 + 12 * rng.standard_normal()
            wall[top - 4 : top, left - 4 : left + 26] = 230
    shifts = np.vstack([rng.integers(-6, 7, (9, 2)), [[44, 3]]])
    shots = [wall[60 + y : 260 + y, 100 + x : 356 + x] + rng.normal(0, 3, (200, 256)) for x, y in shifts]
    return np.stack(shots).clip(0, 255).astype(np.uint8), -shifts


def test_an_image_one_window_off_is_moved_to_the_right_one() -> None:
    """Where all others match closely, one that matches a little less is registered again from other poses."""
    images, corner = facades()

    def off_by(restarts: int) -> np.ndarray:
        matrices = JointAlignment(restarts=restarts).fit(images).transforms_.matrices
        places = map_points(matrices, corner[:, None] + np.array([[128.0, 100.0]]))[:, 0]
        return np.linalg.norm(places - np.median(places, 0), axis=1)

    assert off_by(32).max() < 0.5
    assert off_by(0)[-1] == pytest.approx(48, abs=1), "a whole window"
