"""Are error bars right? The true error of images should be inside twice their bar in 95 of 100 cases.

    python benchmarks/everyday.py bars                                 the photographs that are reported on
    python benchmarks/everyday.py bars --develop                       those that settings are chosen on
    python benchmarks/everyday.py bars --parts copies --photos grass --motions rigid affine --seeds 2

A row is one photograph under one motion, one kind of stack, or forms. A perfect bar holds all of 20 images in every
third set, so a row is drawn with several seeds, which are fitted one by one: some 100 images in all. Seeds of --develop
are others than those reported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import everyday_sets as sets
import numpy as np
from everyday_sets import KnownSet, corner_error

from congeal import JointAlignment
from congeal.geometry import MOTIONS, map_points

PARTS = ("stacks", "copies", "forms")
DEVELOPED = 20
"""The first seed of --develop, but for forms."""
RIGHT = (0.90, 0.99)
"""A row is right if this share of its images is inside. Of 100 images a perfect bar leaves 1 to 10 outside in 98 of 100
cases."""


@dataclass(frozen=True)
class Row:
    """What a row shows, and how each of its sets is made from a seed."""

    name: str
    make: Callable[..., KnownSet]
    seeds: list[int]


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """All rows that were asked for."""
    if "stacks" in args.parts and not args.photos:
        yield from _stacks(args)
    if "copies" in args.parts:
        for photo in args.photos or (sets.DEVELOP if args.develop else sets.REPORT[: 1 if args.quick else 4]):
            for motion in args.motions or MOTIONS:
                side = 256 if args.quick else args.side
                yield Row(f"{photo} {side}²", partial(sets.copies, photo, side, motion), _seeds(args, 5))
    if "forms" in args.parts and not args.photos:
        seeds = ([2, 3] if args.develop else [1, 4])[: 1 if args.quick else args.seeds]
        yield Row("forms", partial(sets.forms, 12 if args.quick else 60), seeds)


def _stacks(args: argparse.Namespace) -> Iterator[Row]:
    """Time-lapses as in `everyday.py stacks`; for --develop the same of other photographs."""
    others = ("retina", "china", "grass", "astronaut", "china", "retina")
    for other, (photo, side, n, more) in list(zip(others, sets.STACKS, strict=True))[: 1 if args.quick else None]:
        photo = other if args.develop else photo
        yield Row(f"{photo} {n}×{side}²", partial(sets.drift, photo, side, n, **more), _seeds(args, 100 // n))


def _seeds(args: argparse.Namespace, count: int) -> list[int]:
    first = DEVELOPED if args.develop else 1
    return list(range(first, first + min(count, 2 if args.quick else args.seeds or count)))


def measure(args: argparse.Namespace) -> None:
    """Print the table, row by row."""
    print("True mean corner error, in pixels of the image, inside 2 × `uncertainty_px`.")
    print("Error by bar: the median, and what 95 of 100 images stay below; 2.0 would be perfect.\n")
    print("| set | true motion | chosen | images | inside | error by bar | error, px | bar, px |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    every: list[np.ndarray] = []
    for row in rows(args):
        truth, motions, errors, bars = "", set(), [], []
        for seed in row.seeds:
            known = row.make(seed=seed)
            model = JointAlignment().fit(known.images)
            truth = known.motion
            motions.add(model.motion_)
            bars.append(model.transforms_.uncertainty_px)
            found = model.transforms_.matrices
            errors.append(corner_error(found, known.truth, known.size) * pixels_per_scene_pixel(known))
        error, bar = np.concatenate(errors), np.concatenate(bars)
        every.append(error / bar)
        chosen = ", ".join(motion for motion in MOTIONS if motion in motions)
        numbers = f"{np.mean(error):.4f} | {np.mean(bar):.4f}"
        print(f"| {row.name} | {truth} | {chosen} | {_shares(every[-1])} | {numbers} |", flush=True)
    right = sum(RIGHT[0] <= np.mean(one <= 2) <= RIGHT[1] for one in every)
    print(f"| all | | | {_shares(np.concatenate(every))} | | |")
    print(f"\n{right} of {len(every)} rows have {RIGHT[0]:.0%} to {RIGHT[1]:.0%} inside.")


def _shares(off: np.ndarray) -> str:
    """Cells of errors divided by their bars: how many, how many of them inside, and how large they are."""
    return f"{len(off)} | **{np.mean(off <= 2):.1%}** | {np.median(off):.2f}, {np.quantile(off, 0.95):.2f}"


def pixels_per_scene_pixel(known: KnownSet) -> np.ndarray:
    """(N,) how large a pixel of the scene is in each image, at the scene's centre."""
    middle = np.array([known.size[1] - 1, known.size[0] - 1]) / 2
    moved = map_points(known.truth, middle + np.array([[0, 0], [1, 0], [0, 1]]))
    sides = moved[:, 1:] - moved[:, :1]
    return np.sqrt(np.abs(np.linalg.det(sides)))
