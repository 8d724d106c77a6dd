"""Image sets whose true warps are known, for benchmarks/everyday.py: everything is drawn from a seed.

    python benchmarks/everyday_sets.py -o DIR      a contact sheet of each kind, and whether the true warps are true

*Scene*: the picture that all images of a set show a part of. `truth` is source_from_scene: where a point of the scene
is in each image, in the pixels of congeal.geometry. Photographs come with scikit-image and scikit-learn; no file is
fetched. What is chosen (settings, thresholds) is chosen on DEVELOP, and reported on REPORT.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter, map_coordinates, spline_filter

from congeal import evaluation as metrics
from congeal import open_images
from congeal.geometry import (
    corners,
    from_normalised,
    homography_from_points,
    invert,
    map_points,
    matrix_from_parameters,
    n_parameters,
    rescale,
)

DEVELOP = ("astronaut", "retina", "china", "grass")
REPORT = ("camera", "coffee", "hubble_deep_field", "ihc", "motorcycle_left", "gravel", "flower")
"""Photographs to choose settings on, and photographs to report on. "brick" is in neither: its pattern repeats, and on
copies of 512×512 lsc, ECC and pystackreg all end some 40 px off."""

NOISE = 0.02  # standard deviation of the noise, as a share of the range of values
EXPOSURE = 0.1  # the gain of an image is 1 ± this
GROUND = 0.85  # of white, as bright as the ground may be at which no gain and no noise reaches white
REACH = (0.16, 0.16, np.radians(8), 0.08, 0.06, 0.06, 0.06, 0.06)
"""The most of each motion parameter in `copies`: shifts of 8 % of the side, 8°, 8 % of scale; then stretch, shear and
perspective that move a corner by some 4 % of the side each."""

FORM, PICTURE = (400, 600), (480, 640)  # (height, width) of a form and of the photograph it is in
_TONES = (((0.5, 1.1), np.array([225, 175, 145])), ((0.2, 1.2), np.array([150, 110, 70])))  # of skin and of hair
FORM_REACH = 0.15  # each corner of a form moves by at most this share of its sides


@dataclass(frozen=True)
class KnownSet:
    """A set of images and where they truly belong.

    Attributes
    ----------
    name : str
        What the images show, for tables.
    images : (N, H, W) or (N, H, W, 3) array of uint8 or uint16, or an `ImageSource`
        What a method is given.
    truth : (N, 3, 3) array of float64, or None
        source_from_scene of each image, in pixels; None where nobody knows.
    motion : str
        The smallest motion that all true warps belong to; "" where nobody knows.
    size : (int, int)
        Height and width of the scene.
    about : str
        How the images were made, where that matters.
    """

    name: str
    images: Any
    truth: NDArray[np.float64] | None
    motion: str
    size: tuple[int, int]
    about: str = ""


def corner_error(found: Any, truth: Any, size: tuple[int, int]) -> NDArray[np.float64]:
    """(N,) mean distance, in pixels of the scene, of its four corners from where they should be.

    found (N,3,3) is aligned_from_source, as in `transforms_.matrices`; truth (N,3,3) is source_from_scene, as in a
    `KnownSet`. One homography for the whole set is removed first, whatever the true motion is, because alignment has
    no preferred pose. It is found robustly: see `congeal.evaluation.corner_error`, which does the work.
    """
    return metrics.corner_error(found, invert(np.asarray(truth, np.float64)), size)


# ---- photographs


@cache
def photograph(name: str) -> NDArray[np.float32]:
    """(H, W, C) float32 values in [0, 1] of a photograph that scikit-image or scikit-learn brings along."""
    import skimage
    import sklearn.datasets

    folders = Path(skimage.__file__).parent / "data", Path(sklearn.datasets.__file__).parent / "images"
    path = next(path for folder in folders for path in sorted(folder.glob(f"{name}.*")))
    pixels = np.asarray(Image.open(path), np.float32) / 255
    return pixels[..., None] if pixels.ndim == 2 else pixels[..., :3]


def views(
    photo: str, truth: NDArray[np.float64], size: tuple[int, int], alone: bool = False
) -> tuple[NDArray[np.float32], str]:
    """(N, *size, C) values of a photograph seen through warps `truth` (N,3,3), and how much it was enlarged.

    The photograph is scaled so that no view looks beyond it: one of 512×512 is enlarged, by a cubic spline, because the
    views need a margin. One that is finer than the views is blurred before it is sampled, as by a lens.
    alone: of the photograph only the middle is there, an ellipse on plain ground, of which nothing is clipped.
    """
    pixels = photograph(photo)
    height, width = pixels.shape[:2]
    middle = (np.array(size[::-1]) - 1) / 2
    seen = np.abs(map_points(invert(truth), corners(size)) - middle).reshape(-1, 2).max(0)
    step = min((width / 2 - 2) / seen[0], (height / 2 - 2) / seen[1])  # pixels of the photograph per pixel of the scene
    photo_from_scene = np.array([[step, 0, (width - 1) / 2], [0, step, (height - 1) / 2], [0, 0, 1.0]])
    photo_from_scene = photo_from_scene @ np.array([[1, 0, -middle[0]], [0, 1, -middle[1]], [0, 0, 1.0]])
    if alone:
        y, x = np.mgrid[:height, :width].astype(np.float32)
        away = np.hypot(
            (x - (width - 1) / 2) / (0.3 * step * size[1]), (y - (height - 1) / 2) / (0.25 * step * size[0])
        )
        inside = (8 * (1 - away) + 0.5).clip(0, 1)[..., None]
        pixels = (GROUND + (np.minimum(pixels, GROUND) - GROUND) * inside).astype(np.float32)
    if step > 1:
        pixels = gaussian_filter(pixels, (0.45 * step, 0.45 * step, 0))
    shown = sample(pixels, photo_from_scene @ invert(truth), size)
    return shown, f"enlarged {1 / step:.2f}×" if step < 1 else f"reduced {step:.2f}×"


def sample(pixels: NDArray[np.float32], source_from_view: NDArray[np.float64], size: tuple[int, int]) -> Any:
    """(H, W, C) pixels through (N,3,3) → (N, h, w, C) float32, by cubic splines at exact positions; 0 outside."""
    channels = [spline_filter(channel, 3, output=np.float32) for channel in np.moveaxis(pixels, -1, 0)]
    y, x = np.mgrid[: size[0], : size[1]]
    points = np.stack([x.ravel(), y.ravel()], -1).astype(np.float64)
    shown = np.empty((len(source_from_view), *size, len(channels)), np.float32)
    for i, matrix in enumerate(source_from_view):
        at = map_points(matrix, points)[:, ::-1].T.reshape(2, *size)
        for c, channel in enumerate(channels):
            map_coordinates(channel, at, output=shown[i, ..., c], order=3, mode="constant", prefilter=False)
    return shown


def exposed(values: NDArray[np.float32], rng: np.random.Generator, gain: float, bits: int = 8) -> NDArray[Any]:
    """Values in [0, 1] as a camera gives them: each image's gain 1 ± `gain`, noise, uint8, or uint16 up to 20,000."""
    gains = rng.uniform(1 - gain, 1 + gain, (len(values), 1, 1, 1)).astype(np.float32)
    noisy = gains * values + NOISE * rng.standard_normal(values.shape, np.float32)
    peak, dtype = (255, np.uint8) if bits == 8 else (20_000, np.uint16)
    counts = np.round(noisy.clip(0, 1) * peak).astype(dtype)
    return counts[..., 0] if counts.shape[-1] == 1 else counts


def copies(
    photo: str, size: int | tuple[int, int], motion: str, n: int = 20, seed: int = 0, alone: bool = False
) -> KnownSet:
    """n views of one photograph under random warps of a motion (`REACH`), exposure ±10 %, 2 % noise.

    size: the side of a square, or (height, width). alone: as of `views`.
    """
    height, width = (size, size) if isinstance(size, int) else size
    rng = np.random.default_rng([seed, max(height, width), n_parameters(motion)])
    parameters = rng.uniform(-1, 1, (n, n_parameters(motion))) * REACH[: n_parameters(motion)]
    truth = from_normalised(matrix_from_parameters(torch.from_numpy(parameters)).numpy(), (height, width))
    values, about = views(photo, truth, (height, width), alone)
    name = f"{photo} {width}²" if height == width else f"{photo} {width}×{height}"
    return KnownSet(name, exposed(values, rng, EXPOSURE), truth, motion, (height, width), about)


SHAPES = ((354, 622), (473, 640), (301, 199))
"""(height, width) that no small picture has exactly the shape of: sides of 64 pixels and less are rounded."""
STACKS: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("cell", 200, 5, {}),
    ("ihc", 200, 50, {"turn": 1.0}),
    ("moon", 512, 5, {"turn": 1.0, "bits": 16}),
    ("ihc", 512, 50, {}),
    ("retina", 1024, 5, {}),
    ("hubble_deep_field", 1024, 50, {"turn": 1.0, "bits": 16}),
)
"""Time-lapses that are reported on: photograph, side, frames, and what else `drift` is told."""


def drift(photo: str, side: int, n: int, seed: int = 0, turn: float = 0.0, bits: int = 8) -> KnownSet:
    """A time-lapse of n frames that walks at random by at most 6 % of the side, 2 % noise; grey, as a microscope's.

    turn: how far it also turns, in degrees (0: translation only). bits: 8, or 16 for uint16 counts up to 20,000.
    """
    rng = np.random.default_rng([seed, side, n])
    walk = rng.standard_normal((n, 3)).cumsum(0)
    walk -= walk[0]
    walk[:, :2] *= 0.12 / np.linalg.norm(walk[:, :2], axis=1).max()
    walk[:, 2] *= np.radians(turn) / np.abs(walk[:, 2]).max()
    truth = from_normalised(matrix_from_parameters(torch.from_numpy(walk)).numpy(), (side, side))
    values, about = views(photo, truth, (side, side))
    frames = exposed(values.mean(-1, keepdims=True), rng, 0.0, bits)
    motion = "rigid" if turn else "translation"
    return KnownSet(f"{photo} {n}×{side}², {bits} bits", frames, truth, motion, (side, side), about)


# ---- forms photographed by phone


def forms(n: int = 60, seed: int = 0) -> KnownSet:
    """n made identity cards of 600×400 with different entries, each in a photograph of 640×480.

    A card lies on a textured table; its corners moved by up to 15 % of its sides and all of it is in the picture. Light
    falls off across the picture, the lens blurs, 2 % noise. truth is picture_from_form.
    """
    rng = np.random.default_rng([seed, n])
    truth = np.stack([_picture_from_form(rng) for _ in range(n)])
    pictures = np.concatenate([_photographed(matrix, rng) for matrix in truth])
    return KnownSet(f"{n} forms", exposed(pictures, rng, EXPOSURE), truth, "homography", FORM)


def _picture_from_form(rng: np.random.Generator) -> NDArray[np.float64]:
    height, width = PICTURE
    sides = 0.85 * np.array(FORM[::-1])
    middle = np.array([width - 1, height - 1]) / 2
    resting = middle + sides * np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    while True:
        moved = resting + rng.uniform(-FORM_REACH, FORM_REACH, (4, 2)) * sides
        if (moved > 2).all() and (moved < [width - 3, height - 3]).all():
            return homography_from_points(corners(FORM), moved)


def _photographed(picture_from_form: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float32]:
    """(1, 480, 640, 3) values in [0, 1]: one card on a table, not yet exposed."""
    card = np.pad(_card(rng), ((8, 8), (8, 8), (0, 0)))  # a rim, so that the card ends softly
    drawn_from_form = rescale(FORM, (2 * FORM[0], 2 * FORM[1]))
    drawn_from_form[:2, 2] += 8
    seen = sample(gaussian_filter(card, (0.8, 0.8, 0)), (drawn_from_form @ invert(picture_from_form))[None], PICTURE)
    inside = seen[..., 3:].clip(0, 1)
    table = photograph(str(rng.choice(["brick", "gravel", "grass", "coffee", "coins"])))
    turned = np.rot90(table, rng.integers(4))[: PICTURE[0], : PICTURE[1]].mean(-1, keepdims=True)
    table = np.array(Image.fromarray(turned[..., 0]).resize(PICTURE[::-1], Image.Resampling.BICUBIC))[..., None]
    tint = rng.uniform(0.5, 0.9) * rng.uniform(0.85, 1, 3)
    values = (1 - inside) * table * tint + seen[..., :3].clip(0, 1) * inside
    angle, strength = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.3)
    y, x = np.mgrid[-0.5 : 0.5 : PICTURE[0] * 1j, -0.5 : 0.5 : PICTURE[1] * 1j]
    light = 0.9 + strength * (np.cos(angle) * x + np.sin(angle) * y)
    blur = rng.uniform(0.3, 1.0)
    return gaussian_filter(values * light[..., None], (0, blur, blur, 0)).astype(np.float32)


def _card(rng: np.random.Generator) -> NDArray[np.float32]:
    """(800, 1200, 4) values in [0, 1] of a filled card at twice its size; the last channel is 1 wherever it is."""
    image = Image.new("RGB", (1200, 800), (236, 240, 232))
    draw = ImageDraw.Draw(image)
    small, plain, large = (ImageFont.load_default(size) for size in (24, 38, 52))

    def word(least: int, most: int) -> str:
        parts = rng.choice(["ba", "ren", "lo", "mi", "ka", "tor", "sel", "vi", "an", "du", "ost", "per"], (most,))
        return "".join(parts[: rng.integers(least, most + 1)]).capitalize()

    def number(digits: int) -> str:
        return "".join(str(d) for d in rng.integers(0, 10, digits))

    # What all cards share: frame, band, emblem, labels and boxes.
    draw.rectangle((0, 0, 1199, 799), outline=(40, 60, 90), width=8)
    draw.rectangle((8, 8, 1191, 120), fill=(48, 84, 130))
    draw.text((190, 34), "REPUBLIC OF NOWHERE", font=large, fill="white")
    draw.text((930, 46), "IDENTITY CARD", font=small, fill="white")
    draw.ellipse((40, 14, 140, 114), fill=(226, 190, 60))
    draw.polygon([(90, 22), (106, 88), (52, 48), (128, 48), (74, 88)], fill=(150, 40, 40))
    labels = ["Surname", "Given names", "Born", "Place", "Number"]
    entries = [word(2, 4), f"{word(1, 3)} {word(1, 3)}", "", word(2, 3), number(9)]
    entries[2] = f"{rng.integers(1, 29):02d}.{rng.integers(1, 13):02d}.{rng.integers(1940, 2006)}"
    for row, (label, entry) in enumerate(zip(labels, entries, strict=True)):
        top = 146 + 84 * row
        draw.text((420, top), label, font=small, fill=(70, 90, 120))
        draw.rectangle((590, top - 8, 1160, top + 60), outline=(70, 90, 120), width=3)
        draw.text((606, top + 2), entry, font=plain, fill=(20, 20, 30))
    draw.rectangle((40, 146, 380, 566), outline=(40, 60, 90), width=4)
    draw.line((420, 650, 1160, 650), fill=(70, 90, 120), width=3)
    draw.text((420, 656), "Signature of holder", font=small, fill=(70, 90, 120))

    # What is the holder's own: portrait, signature and the line for machines.
    skin, hair = (tuple(int(v) for v in rng.uniform(*reach) * tone) for reach, tone in _TONES)
    shirt = tuple(int(v) for v in rng.integers(40, 220, 3))
    x, y = rng.integers(-20, 20, 2)
    draw.rectangle((44, 150, 376, 562), fill=(200, 208, 216))
    draw.ellipse((80 + x, 440 + y, 340 + x, 700 + y), fill=shirt)
    draw.rectangle((40, 567, 380, 725), fill=(236, 240, 232))
    draw.ellipse((120 + x, 200 + y, 300 + x, 420 + y), fill=hair)
    draw.ellipse((135 + x, 235 + y, 285 + x, 450 + y), fill=skin)
    along = np.linspace(0, 1, 120)
    waves = sum(rng.normal(0, 22 / k) * np.sin(2 * np.pi * (k * 1.7 * along + rng.random())) for k in range(1, 6))
    across = 440 + rng.uniform(250, 600) * (along + 0.02 * np.sin(25 * along + rng.random()))
    draw.line(list(zip(across, 606 + waves, strict=True)), fill=(30, 40, 110), width=5)
    draw.text((40, 720), f"IDNOW{number(9)}<<{entries[0].upper()}<<<<<{number(8)}", font=plain, fill=(20, 20, 30))
    values = np.asarray(image, np.float32) / 255
    return np.concatenate([values, np.ones_like(values[..., :1])], -1)


# ---- congeal's own sets


def digits(digit: int, n: int, sigma: float = 0.0) -> KnownSet:
    """The first n of a digit of MNIST; with sigma, their corners moved by that share of the side (pixels are lost).

    Digits differ in shape, so even the true warps leave them unlike. Without sigma nobody knows a truth.
    """
    name = f"perspective-baked:{digit}@{sigma}" if sigma else f"mnist:{digit}"
    source: Any = open_images(name, limit=n)
    if not sigma:
        return KnownSet(f"{n} of digit {digit}", source, None, "", (28, 28))
    truth = np.asarray(open_images(name).truth)[:n]  # type: ignore[attr-defined]
    return KnownSet(f"{n} of digit {digit}, σ = {sigma}", source, invert(truth), "homography", (28, 28))


def faces(subject: str, limit: int | None = None) -> KnownSet:
    """Photographs of one person of LFW, started at its face box; `datasets.photographs.landmarks` measures."""
    source = open_images(f"lfw:{subject}", limit=limit)
    return KnownSet(f"{subject.replace('_', ' ')}, {len(source)}", source, None, "", (250, 250))


# ---- looking at them


def disagreement(known: KnownSet) -> float:
    """How unlike the images are after their true warps: RMS deviation from their mean, in multiples of the noise.

    Each image's gain is removed, and only the middle of the scene counts. Sampling averages noise, so right warps
    leave less than 1; forms have different entries and leave more.
    """
    rows, columns = (slice(side // 4, side - side // 4) for side in known.size)
    aligned = _rightly_aligned(known)[:, rows, columns]
    gains = aligned.mean((1, 2, 3), keepdims=True) / aligned.mean()
    return float(np.sqrt((aligned / gains).var(0, ddof=1).mean()) / NOISE)


def _values(known: KnownSet) -> NDArray[np.float32]:
    """(N, H, W, C) values in [0, 1] of an array set."""
    peak = 255 if known.images.dtype == np.uint8 else 20_000
    return known.images.astype(np.float32).reshape(*known.images.shape[:3], -1) / np.float32(peak)


def _rightly_aligned(known: KnownSet) -> NDArray[np.float32]:
    """(N, h, w, C) the images as the scene, through their true warps."""
    assert known.truth is not None
    pairs = zip(_values(known), known.truth, strict=True)
    return np.concatenate([sample(image, matrix[None], known.size) for image, matrix in pairs])


def contact_sheet(known: KnownSet, columns: int = 5, height: int = 240) -> Image.Image:
    """The first ten images of an array set, their mean as given, and their mean after the true warps."""
    values, right = _values(known), _rightly_aligned(known).mean(0)
    tiles = []
    for tile in [*values[: 2 * columns], values.mean(0), right]:
        grey = np.broadcast_to(tile, (*tile.shape[:2], 3))
        picture = Image.fromarray((grey.clip(0, 1) * 255).astype(np.uint8))
        tiles.append(picture.resize((height * picture.width // picture.height, height), Image.Resampling.LANCZOS))
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    sheet = Image.new("RGB", (max(sum(tile.width for tile in row) for row in rows), height * len(rows)))
    for down, row in enumerate(rows):
        for tile, left in zip(row, np.cumsum([0, *(tile.width for tile in row)]), strict=False):
            sheet.paste(tile, (int(left), down * height))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    sets = [copies(photo, 512, "homography", 10) for photo in (*DEVELOP, *REPORT)]
    sets += [copies("retina", 1024, motion, 5) for motion in ("translation", "rigid", "similarity", "affine")]
    sets += [drift("cell", 200, 5), drift("ihc", 512, 50, turn=1.0), drift("retina", 1024, 5, bits=16), forms(20)]
    for known in sets:
        print(f"{known.name}, {known.motion} {known.about}: {disagreement(known):.2f} × the noise", flush=True)
        contact_sheet(known).save(folder / f"{known.name.replace(' ', '_')}_{known.motion}.png")


if __name__ == "__main__":
    main()
