"""The pictures of README and docs/methods.md, from our own runs on the bundled digits.

python docs/make_pictures.py digits      the mean of every digit before and after (lsc)
python docs/make_pictures.py methods     mean and spread of two digits under every method, and a picture of each
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import congeal
from congeal.methods.registry import method_class

HERE = Path(__file__).parent / "images"
ZOOM, GAP, LABEL = 3, 4, 90
SIDE = 28 * ZOOM


def digit_images(digit: int, limit: int | None = None) -> np.ndarray:
    source = congeal.open_images(f"digits:{digit}", limit=limit)
    return source.batch(np.arange(len(source)))[..., 0]


def tile(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def sheet(rows: list[list[np.ndarray]], labels: list[str] | None = None) -> Image.Image:
    """Tiles in a grid, each row with its name where there are names."""
    left = LABEL if labels else 0
    size = (left + len(rows[0]) * (SIDE + GAP) - GAP, len(rows) * (SIDE + GAP) - GAP)
    picture = Image.new("L", size, 255)
    for r, row in enumerate(rows):
        if labels:
            ImageDraw.Draw(picture).text((4, r * (SIDE + GAP) + SIDE // 2), labels[r], fill=0)
        for c, values in enumerate(row):
            picture.paste(tile(values), (left + c * (SIDE + GAP), r * (SIDE + GAP)))
    return picture


def save(picture: Image.Image, name: str) -> None:
    HERE.mkdir(exist_ok=True)
    picture.save(HERE / name, optimize=True)
    print(HERE / name, f"{(HERE / name).stat().st_size / 1000:.0f} kB")


def digits() -> None:
    pairs = [(images, congeal.LSC(size=28).fit_transform(images)) for images in map(digit_images, range(10))]
    save(sheet([[images.mean(0) for images in row] for row in zip(*pairs, strict=True)]), "digits.png")


def methods() -> None:
    """100 threes and 100 sevens, affine motion: mean and twice the standard deviation, of all methods and of each."""
    sets = [digit_images(3, 100), digit_images(7, 100)]

    def looks(images: np.ndarray) -> list[np.ndarray]:
        return [images.mean(0), 2 * images.astype(float).std(0)]

    before = [looks(images) for images in sets]
    rows, labels = [before[0] + before[1]], ["before"]
    for name in congeal.list_methods():
        models = [method_class(name)(motion="affine") for _ in sets]
        after = [looks(model.fit_transform(images)) for model, images in zip(models, sets, strict=True)]
        values = [f"{m.quality_.apsnr_after:.2f} dB at energy {m.quality_.energy_ratio:.2f}" for m in models]
        print(name, *values, sep="  ", flush=True)
        save(sheet([old + new for old, new in zip(before, after, strict=True)]), f"method-{name}.png")
        rows.append(after[0] + after[1])
        labels.append(name)
    save(sheet(rows, labels), "methods.png")


if __name__ == "__main__":
    for what in sys.argv[1:] or ["digits", "methods"]:
        {"digits": digits, "methods": methods}[what]()
