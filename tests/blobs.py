"""A small set that aligns in no time: one elongated blob at slightly different places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def blob(n: int = 8, size: int = 24, seed: int = 0) -> np.ndarray:
    """(n, size, size) uint8: one elongated blob at slightly different places."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    centres = size / 2 + rng.uniform(-2, 2, (n, 2))
    return np.stack([255 * np.exp(-(((x - a) / 5) ** 2) - ((y - b) / 2.5) ** 2) for a, b in centres]).astype(np.uint8)


def save_folder(folder: Path, images: np.ndarray) -> Path:
    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i}.png")
    return folder
