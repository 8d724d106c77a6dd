"""The README's picture, from our own runs: the mean of the bundled digits before and after alignment.

python docs/make_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import congeal

HERE = Path(__file__).parent / "images"
ZOOM, GAP = 3, 4


def means(digit: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of one digit's images before and after, (28, 28) uint8 each."""
    source = congeal.open_images(f"digits:{digit}")
    images = source.batch(np.arange(len(source)))[..., 0]
    aligned = congeal.LSC(size=28).fit_transform(images)
    return images.mean(0).astype(np.uint8), aligned.mean(0).astype(np.uint8)


def main() -> None:
    before, after = zip(*(means(digit) for digit in range(10)), strict=True)
    side = 28 * ZOOM
    picture = Image.new("L", (10 * (side + GAP) - GAP, 2 * side + GAP), 255)
    for row, pictures in enumerate((before, after)):
        for column, values in enumerate(pictures):
            tile = Image.fromarray(values).resize((side, side), Image.Resampling.BICUBIC)
            picture.paste(tile, (column * (side + GAP), row * (side + GAP)))
    HERE.mkdir(exist_ok=True)
    picture.save(HERE / "digits.png", optimize=True)
    print(HERE / "digits.png", f"{(HERE / 'digits.png').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
