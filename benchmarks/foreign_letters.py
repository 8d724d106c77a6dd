"""Foreign letters: how many of them are flagged, and how many right ones, in sets of one letter in many fonts.

    python benchmarks/foreign_letters.py FONTS [--method lsc] [--sets 2] [--seed 0]

FONTS is a folder with fonts (.ttf, .otf) anywhere below it. Sets of 50 images of 48×48, each in a font of its own under
a random affine warp, with no, 10 and 30 % other letters. Fonts without the letter are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import map_coordinates

from congeal import LSC, JointAlignment

LETTERS, OTHERS = "DGHKM24hqz", "RSxe7&kZw8"
"""Letters of the sets, and foreign ones. No threshold was chosen on letters."""
SIDE, DRAWN = 48, 192  # pixels of an image, and of the letter that it is made of
SHARES = (0.0, 0.1, 0.3)
METHODS = {"lsc": LSC, "joint": JointAlignment}


def letter(sign: str, font: Path, rng: np.random.Generator) -> NDArray[np.uint8] | None:
    """(48, 48) a letter under a random warp; None if the font does not have it."""
    try:
        drawn = Image.new("L", (DRAWN, DRAWN))
        face = ImageFont.truetype(str(font), round(0.6 * DRAWN))
        ImageDraw.Draw(drawn).text((DRAWN / 2, DRAWN / 2), sign, font=face, fill=255, anchor="mm")
    except OSError:
        return None
    values = np.asarray(drawn.resize((SIDE, SIDE), Image.Resampling.LANCZOS), np.float32)
    if values.sum() < 500:
        return None
    turn, size, shear = rng.uniform(-0.3, 0.3), np.exp(rng.uniform(-0.15, 0.15)), rng.uniform(-0.1, 0.1, (2, 2))
    linear = size * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ (np.eye(2) + shear)
    middle = (SIDE - 1) / 2
    places = np.mgrid[:SIDE, :SIDE].reshape(2, -1) - middle - rng.uniform(-0.12, 0.12, (2, 1)) * SIDE
    shown = map_coordinates(values, np.linalg.inv(linear) @ places + middle, order=3)
    return shown.reshape(SIDE, SIDE).clip(0, 255).astype(np.uint8)


def letters(sign: str, count: int, fonts: list[Path], rng: np.random.Generator) -> list[NDArray[np.uint8]]:
    """A letter in so many fonts, or in as many as have it."""
    made = (letter(sign, fonts[int(i)], rng) for i in rng.permutation(len(fonts)))
    return [image for image in made if image is not None][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--method", choices=METHODS, default="lsc")
    parser.add_argument("--sets", type=int, default=2, help="of each letter and share")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    fonts = sorted(path for path in args.fonts.rglob("*") if path.suffix.lower() in (".ttf", ".otf"))
    rng = np.random.default_rng(args.seed)
    print(f"{len(fonts)} fonts, {args.method}\n\n| foreign | found | right ones flagged |\n|---|---|---|")
    for share in SHARES:
        flagged, foreign = [], []
        for sign in LETTERS * args.sets:
            count = round(share * 50)
            strange = [letters(other, -(-count // len(OTHERS)), fonts, rng) for other in OTHERS]
            others = [image for some in strange for image in some][:count]
            images = np.stack(letters(sign, 50 - len(others), fonts, rng) + others)
            model = METHODS[args.method](random_state=0).fit(images)
            flagged.append(np.asarray(model.transforms_.status) != "ok")
            foreign.append(np.arange(len(images)) >= len(images) - len(others))
        found, there = np.concatenate(flagged), np.concatenate(foreign)
        caught = f"{found[there].mean():.1%} of {there.sum():,}" if there.any() else "–"
        print(f"| {share:.0%} | {caught} | {found[~there].mean():.1%} of {(~there).sum():,} |", flush=True)


if __name__ == "__main__":
    main()
