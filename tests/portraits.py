"""Photographs as people have them: one person in colour JPEGs of mixed sizes, lying as the camera was held."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from congeal.geometry import map_points, warp

# Two eyes and a mouth in scikit-image's public-domain portrait of Eileen Collins (NASA), 512×512.
FACE = np.array([[205.0, 108.0], [243.0, 106.0], [226.0, 140.0]])
# What an upright picture has to go through to be stored with this EXIF orientation.
STORED = {
    1: None,
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}


class Shot(NamedTuple):
    """One photograph: its upright size, how large and where the portrait is in it, and its EXIF orientation."""

    height: int
    width: int
    scale: float
    shift: tuple[float, float]
    turn: float
    orientation: int

    @property
    def photo_from_portrait(self) -> np.ndarray:
        """Scaled and turned about the face, which lands `shift` away from the centre of the photograph."""
        c, s = self.scale * np.cos(self.turn), self.scale * np.sin(self.turn)
        linear = np.array([[c, -s], [s, c]])
        target = np.array([self.width / 2, self.height / 2]) + self.shift
        matrix = np.eye(3)
        matrix[:2, :2], matrix[:2, 2] = linear, target - linear @ FACE.mean(0)
        return matrix

    @property
    def face(self) -> np.ndarray:
        """(3,2) the points of `FACE` in this photograph, upright."""
        return np.asarray(map_points(self.photo_from_portrait, FACE))


SHOTS = (
    Shot(300, 400, 0.9, (0, 0), 0.00, 1),
    Shot(420, 300, 1.1, (8, -20), 0.05, 6),
    Shot(640, 480, 1.8, (-30, 20), -0.06, 8),
    Shot(360, 360, 1.3, (15, 10), 0.04, 3),
    Shot(900, 700, 2.6, (40, -60), 0.00, 1),
    Shot(300, 420, 1.0, (-25, 12), -0.04, 6),
)
NO_FACE = "zz no face.jpg"


def name(i: int) -> str:
    return f"photo {i}.jpg"


def take(shot: Shot) -> Image.Image:
    """The photograph, upright."""
    import skimage.data

    portrait = torch.from_numpy(skimage.data.astronaut()).permute(2, 0, 1)[None].float()
    back = torch.from_numpy(np.linalg.inv(shot.photo_from_portrait))[None]
    pixels = warp(portrait, back, (shot.height, shot.width), padding="reflect", mode="bicubic")
    return Image.fromarray(pixels[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy())


def save(picture: Image.Image, path: Path, orientation: int) -> None:
    how = STORED[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    (picture if how is None else picture.transpose(how)).save(path, quality=92, exif=exif)


def write_portraits(folder: Path) -> Path:
    """Every shot, and a cup of coffee."""
    import skimage.data

    for i, shot in enumerate(SHOTS):
        save(take(shot), folder / name(i), shot.orientation)
    save(Image.fromarray(skimage.data.coffee()), folder / NO_FACE, 1)
    return folder
