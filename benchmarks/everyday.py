"""What an everyday user gets: accuracy, speed, error bars and verdict on sets whose answer is known.

    python benchmarks/everyday.py precision          20 copies of photographs under known warps, against the peers
    python benchmarks/everyday.py stacks             time-lapses that drift: seconds against lsc
    python benchmarks/everyday.py forms              60 identity cards photographed by phone
    python benchmarks/everyday.py photographs        42 to 100 faces of a person: landmark error and seconds
    python benchmarks/everyday.py lfw                four people, from photographs to report
    python benchmarks/everyday.py bars               how often the true error is inside the error bar (everyday_bars.py)
    python benchmarks/everyday.py digits             MNIST, 1,000 of each digit
    python benchmarks/everyday.py frames             1280×960 frames against OpenCV (benchmarks/frames.py)
    python benchmarks/everyday.py verdict            200 alignments of known quality (benchmarks/everyday_verdict.py)

Each prints one Markdown table, all of it measured in this process, one after the other. --quick takes about a minute.
--before PATH names an older tree of the project: photographs and lfw run its default too, in a process of its own.
Faces and MNIST are read from $CONGEAL_DATA. "joint" is `congeal.JointAlignment()` as it comes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import everyday_sets as sets
import numpy as np
import torch
from everyday_bars import PARTS
from everyday_bars import measure as measure_bars
from everyday_sets import KnownSet, corner_error

from congeal import LSC, JointAlignment, open_images
from congeal.datasets.photographs import landmarks
from congeal.evaluation import landmark_error
from congeal.geometry import MOTIONS, invert, map_points, rescale

SUBJECTS = {"Jennifer_Capriati": None, "Serena_Williams": None, "George_W_Bush": 100}
"""People of `photographs`, and how many of their photographs (None: all)."""
EVERYBODY = ("George_W_Bush", "Tony_Blair", "Serena_Williams", "Jennifer_Capriati")
GOAL = 0.1  # mean corner error in pixels that copies of a photograph should come back to
STACK_RUNS = 3  # of both methods in turn; the median counts
COARSEST = 48  # the pyramid of ECC halves images while their shorter side stays above this


def line(*cells: Any) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def head(*cells: str) -> None:
    line(*cells)
    line(*["---"] * len(cells))


def fitted(model: Any, images: Any) -> tuple[Any, float]:
    """The model fitted to the images, and the seconds that took."""
    begun = time.perf_counter()
    model.fit(images)
    return model, time.perf_counter() - begun


def warm_up() -> None:
    """What is loaded once is not counted: fit four small images."""
    images = sets.copies("camera", 64, "translation", n=4).images
    for model in (LSC(), JointAlignment()):
        model.fit(images)


def chosen(model: Any) -> str:
    """The motion a model used; older ones only know the one that was asked for."""
    return str(getattr(model, "motion_", model.motion))


def error_of(model: Any, known: KnownSet) -> np.ndarray:
    return corner_error(model.transforms_.matrices, known.truth, known.size)


def summary(errors: np.ndarray) -> str:
    return f"{errors.mean():.3f} ({np.median(errors):.3f}, {errors.max():.2f})"


# ---- the peers: each gives aligned_from_source, the frame being the first image


def grey(images: np.ndarray) -> np.ndarray:
    """(N, H, W) float32 in [0, 1]."""
    values = images.astype(np.float32) / images.max()
    return values.mean(-1) if values.ndim == 4 else values


def opencv_ecc(images: np.ndarray, motion: str) -> np.ndarray:
    """cv2.findTransformECC of every image to the first, from the identity, coarse to fine; similarity as affine.

    At the coarsest level the motion grows from a translation to the one asked for: of three ways to use the pyramid,
    tried on five sets of `precision`, this one lost the fewest images.
    """
    known = {
        "translation": cv2.MOTION_TRANSLATION,
        "rigid": cv2.MOTION_EUCLIDEAN,
        "affine": cv2.MOTION_AFFINE,
        "homography": cv2.MOTION_HOMOGRAPHY,
    }
    growing = list(known)[: list(known).index("affine" if motion == "similarity" else motion) + 1]
    end = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 100, 1e-6)
    first, *others = [_pyramid(image) for image in grey(images)]
    found = [np.eye(3)]
    for levels in others:
        matrix = np.eye(3)  # image_from_first, in pixels of the level
        for i, (template, image) in enumerate(zip(first, levels, strict=True)):
            if i:
                finer = rescale(first[i - 1].shape, template.shape)
                matrix = finer @ matrix @ np.linalg.inv(finer)
            for name in growing[-1:] if i else growing:
                start = matrix[: 3 if name == "homography" else 2].astype(np.float32)
                try:
                    _, better = cv2.findTransformECC(template, image, start, known[name], end)
                except cv2.error:  # "did not converge": go on from where it was
                    continue
                matrix[: len(better)] = better
        found.append(matrix)
    return np.asarray(invert(np.stack(found)))


def _pyramid(image: np.ndarray) -> list[np.ndarray]:
    """The image at halved sizes, the coarsest first."""
    levels = [image]
    while min(levels[0].shape) // 2 >= COARSEST:
        height, width = levels[0].shape
        levels.insert(0, cv2.resize(levels[0], (width // 2, height // 2), interpolation=cv2.INTER_AREA))
    return levels


def stackreg(images: np.ndarray, motion: str) -> np.ndarray | None:
    """pystackreg, every image to the first; None for homographies, which it does not have."""
    from pystackreg import StackReg

    which = {
        "translation": StackReg.TRANSLATION,
        "rigid": StackReg.RIGID_BODY,
        "similarity": StackReg.SCALED_ROTATION,
        "affine": StackReg.AFFINE,
    }.get(motion)
    if which is None:
        return None
    peer = StackReg(which)
    source_from_first = peer.register_stack(grey(images), reference="first", axis=0, suppress_axis_warning=True)
    return np.asarray(invert(source_from_first))


PEERS: dict[str, Callable[[np.ndarray, str], np.ndarray | None]] = {"ECC": opencv_ecc, "pystackreg": stackreg}


# ---- the rows


def precision(args: argparse.Namespace) -> None:
    """Corner errors on copies of photographs, in pixels, and seconds."""
    photos = args.photos or (sets.REPORT[:1] if args.quick else sets.REPORT)
    sizes: list[Any] = args.sides or ([256] if args.quick else [512, 1024])
    sizes = [*sets.SHAPES] if args.shapes else sizes
    methods = [name for name in ("joint", "lsc", *PEERS) if name in args.methods]
    print("Corner error in pixels: mean (median, worst image). lsc, ECC and pystackreg are told the true motion.\n")
    head("photograph", "made", "true motion", "chosen", *methods, *(f"{name}, s" for name in methods))
    every: dict[str, list[float]] = {name: [] for name in methods}
    for photo in photos:
        for size in sizes:
            for motion in args.motions or MOTIONS:
                known = sets.copies(photo, size, motion, n=6 if args.quick else 20, alone=args.alone)
                picked, errors, seconds = "", {}, {}
                for name in methods:
                    found, seconds[name], motion_used = _align(name, known)
                    picked = motion_used if name == "joint" else picked
                    errors[name] = None if found is None else corner_error(found, known.truth, known.size)
                for name, error in errors.items():
                    every[name] += [] if error is None else [float(error.mean())]
                cells = ["–" if e is None else summary(e) for e in errors.values()]
                times = ["–" if errors[name] is None else f"{seconds[name]:.1f}" for name in methods]
                line(known.name, known.about, motion, picked, *cells, *times)
    # A peer that loses a texture is off by a hundred pixels: a mean over sets would say nothing else.
    cells = [f"**{np.median(values):.3f}**" if values else "–" for values in every.values()]
    line("median of sets", "", "", "", *cells, *[""] * len(methods))
    cells = [f"{sum(value <= GOAL for value in values)} of {len(values)}" for values in every.values()]
    line(f"sets within {GOAL:.2f} px", "", "", "", *cells, *[""] * len(methods))


def _align(name: str, known: KnownSet) -> tuple[np.ndarray | None, float, str]:
    """aligned_from_source of one method, seconds, and its motion."""
    if name == "joint":
        model, seconds = fitted(JointAlignment(), known.images)
        return model.transforms_.matrices, seconds, chosen(model)
    if name == "lsc":  # 256: where the issue saw it at its best
        model, seconds = fitted(LSC(motion=known.motion, size=256), known.images)
        return model.transforms_.matrices, seconds, known.motion
    begun = time.perf_counter()
    found = PEERS[name](known.images, known.motion)
    return found, time.perf_counter() - begun, known.motion


def drifting(quick: bool) -> list[KnownSet]:
    """Stacks of 5 and 50 frames."""
    return [sets.drift(photo, side, n, **more) for photo, side, n, more in sets.STACKS[: 1 if quick else None]]


def stacks(args: argparse.Namespace) -> None:
    """Seconds to fit, against lsc as it comes; both in turn, several times, since a second of a machine is uneven."""
    print(f"Seconds to fit (median of {STACK_RUNS}, in turn), and corner error in pixels: mean (median, worst frame).")
    print("Both methods as they come.\n")
    head("stack", "true motion", "chosen", "joint, s", "lsc, s", "ratio", "joint, px", "lsc, px")
    for known in drifting(args.quick):
        runs = [(fitted(JointAlignment(), known.images), fitted(LSC(), known.images)) for _ in range(STACK_RUNS)]
        (deep, _), (lsc, _) = runs[-1]
        ours, theirs = (float(np.median([seconds for _, seconds in run])) for run in zip(*runs, strict=True))
        errors = [summary(error_of(model, known)) for model in (deep, lsc)]
        times = f"{ours:.2f}", f"{theirs:.2f}", f"**{ours / theirs:.1f}**"
        line(known.name, known.motion, chosen(deep), *times, *errors)


def forms(args: argparse.Namespace) -> None:
    """Corner errors in % of the form's shorter side."""
    print("Mean corner error in % of the form's shorter side (400 of 600×400 pixels).\n")
    head("set", "method", "chosen", "mean", "median", "worst", "over 5 %", "seconds")
    for seed in range(1 if args.quick else 2):
        known = sets.forms(12 if args.quick else 60, seed)
        for name in ("joint", "lsc", "ECC"):
            found, seconds, motion = _align(name, known)
            percent = 100 * corner_error(found, known.truth, known.size) / min(known.size)
            numbers = f"**{percent.mean():.2f}**", f"{np.median(percent):.2f}", f"{percent.max():.2f}"
            line(f"{known.name}, seed {seed}", name, motion, *numbers, int((percent > 5).sum()), f"{seconds:.1f}")


def photographs(args: argparse.Namespace) -> None:
    """Faces of one person: landmark error and seconds, with training, without asking, and before."""
    print("Landmark error in % of the eye distance, and seconds to fit; boxes are found beforehand.")
    print("Times faster: than the first line of the same person.\n")
    head("photographs", "run", "motion", "before", "after", "seconds", "times faster")
    for subject, limit in list(SUBJECTS.items())[: 1 if args.quick else None]:
        if args.people and subject not in args.people:
            continue
        runs: dict[str, Callable[[], dict[str, Any]]] = {}
        task = {"subject": subject, "limit": 16 if args.quick else limit}
        if args.before:
            runs["joint, before"] = partial(in_tree, args.before, "fit_faces", **task)
        runs["joint, train=always"] = partial(fit_faces, **task, train="always")
        runs["joint"] = partial(fit_faces, **task)
        slowest = None
        for name, run in runs.items():
            try:
                row = run()
            except TypeError as error:  # a tree without that parameter
                line(subject, name, f"not measured: {error}", "", "", "", "")
                continue
            slowest = slowest or row["seconds"]
            numbers = f"{row['before']:.2f}", f"**{row['after']:.2f}**", f"{row['seconds']:.1f}"
            line(f"{subject}, {row['n']}", name, row["motion"], *numbers, f"{slowest / row['seconds']:.1f}")


def fit_faces(subject: str, limit: int | None, **parameters: Any) -> dict[str, Any]:
    """One fit: number of photographs, landmark error before and after, motion and seconds."""
    source = sets.faces(subject, limit).images
    start = np.asarray(source.initial)  # finds the boxes, which is not what is timed here
    model, seconds = fitted(JointAlignment(**parameters), source)
    points = landmarks(source)
    after, before = (landmark_error(map_points(m, points))["mean"] for m in (model.transforms_.matrices, start))
    return {"n": len(source), "before": before, "after": after, "motion": chosen(model), "seconds": seconds}


def lfw(args: argparse.Namespace) -> None:
    """All four people, from photographs to report, each tree in a process of its own."""
    print("`congeal.align` from photographs to report.html, in a process of its own; landmark error in %.\n")
    head("subject", "tree", "after", "seconds", "times faster")
    subjects, limit = (EVERYBODY[-1:], 16) if args.quick else (args.people or EVERYBODY, None)
    trees = {"before": args.before} if args.before else {}
    trees["this"] = Path(__file__).resolve().parents[1]
    total = dict.fromkeys(trees, 0.0)
    for subject in subjects:
        slowest = None
        for name, tree in trees.items():
            row = in_tree(tree, "align_faces", subject=subject, limit=limit)
            total[name] += row["seconds"]
            slowest = slowest or row["seconds"]
            line(subject, name, f"{row['after']:.2f}", f"{row['seconds']:.1f}", f"{slowest / row['seconds']:.1f}")
    for name, seconds in total.items():
        line("all", name, "", f"{seconds:.1f}", f"**{next(iter(total.values())) / seconds:.1f}**")


def align_faces(subject: str, limit: int | None) -> dict[str, Any]:
    """`congeal.align` on a person, timed, and the landmark error of what it wrote."""
    from congeal import Transforms, align

    name = f"lfw:{subject}"
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        align(name, Path(folder) / "run", limit=limit, quiet=True)
        seconds = time.perf_counter() - begun
        found = Transforms.load(Path(folder) / "run" / "transforms.csv")
    source = open_images(name, limit=limit)
    found = found.matching([source.id(i) for i in range(len(source))])
    return {"after": landmark_error(map_points(found.matrices, landmarks(source)))["mean"], "seconds": seconds}


def in_tree(tree: Path, task: str, **options: Any) -> dict[str, Any]:
    """What a function of this file gives when it runs on the package in another tree."""
    command = [sys.executable, __file__, "task", json.dumps({"task": task, **options})]
    environment = os.environ | {"PYTHONPATH": str(tree.resolve() / "src")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{task} failed in {tree}:\n{ended.stderr}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def task(args: argparse.Namespace) -> None:
    """What `in_tree` starts."""
    options = json.loads(args.options)
    name = options.pop("task")
    if name == "fit_faces":
        warm_up()
    print(json.dumps({"fit_faces": fit_faces, "align_faces": align_faces}[name](**options)))


def bars(args: argparse.Namespace) -> None:
    """How many images have their true error inside twice their error bar: benchmarks/everyday_bars.py."""
    measure_bars(args)


def digits(args: argparse.Namespace) -> None:
    """MNIST, 1,000 of each digit: deep against lsc, both as they come."""
    count = 100 if args.quick else 1000
    print(f"MNIST, {count} of each digit: APSNR in dB, energy ratio, seconds.\n")
    head("digit", "before", "joint", "lsc", "joint, energy", "lsc, energy", "chosen", "joint, s", "lsc, s")
    rows = []
    for digit in range(3) if args.quick else range(10):
        source = sets.digits(digit, count).images
        (deep, ours), (lsc, theirs) = fitted(JointAlignment(), source), fitted(LSC(), source)
        one, two = deep.quality_, lsc.quality_
        rows.append([one.apsnr_before, one.apsnr_after, two.apsnr_after, one.energy_ratio, two.energy_ratio])
        line(digit, *(f"{value:.2f}" for value in rows[-1]), chosen(deep), f"{ours:.1f}", f"{theirs:.1f}")
    line("mean", *(f"**{value:.2f}**" for value in np.mean(rows, 0)), "", "", "")


def frames(args: argparse.Namespace) -> None:
    """1280×960 frames: benchmarks/frames.py."""
    from frames import measure

    measure(args.threads, quick=args.quick)


def verdict(args: argparse.Namespace) -> None:
    """200 alignments of known quality: benchmarks/everyday_verdict.py."""
    from everyday_verdict import measure

    measure(quick=args.quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = parser.add_subparsers(dest="row", required=True)
    for measure in (precision, stacks, forms, photographs, lfw, bars, digits, frames, verdict):
        row = rows.add_parser(measure.__name__, description=measure.__doc__)
        row.set_defaults(measure=measure)
        row.add_argument("--quick", action="store_true", help="a small part, in about a minute")
        row.add_argument("--threads", type=int, default=2)
        if measure is precision:
            row.add_argument("--photos", nargs="+", help=f"to choose settings on: {' '.join(sets.DEVELOP)}")
            row.add_argument("--sides", nargs="+", type=int)
            row.add_argument("--alone", action="store_true", help="the middle of a photograph on plain ground instead")
            row.add_argument("--shapes", action="store_true", help="pictures that are not square instead")
            row.add_argument("--motions", nargs="+", choices=MOTIONS)
            row.add_argument("--methods", nargs="+", default=["joint", "lsc", *PEERS])
        if measure is bars:
            row.add_argument("--develop", action="store_true", help=f"to choose settings on: {' '.join(sets.DEVELOP)}")
            row.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
            row.add_argument("--photos", nargs="+", help="copies of these only")
            row.add_argument("--motions", nargs="+", choices=MOTIONS, help="of copies")
            row.add_argument("--side", type=int, default=512, help="of copies, in pixels")
            row.add_argument("--seeds", type=int, help="at most so many sets in a row")
        if measure in (photographs, lfw):
            row.add_argument("--before", type=Path, help="an older tree of the project to run in the same minutes")
            row.add_argument("--people", nargs="+", choices=EVERYBODY, help="these of them")
    child = rows.add_parser("task")
    child.set_defaults(measure=task, threads=2)
    child.add_argument("options")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cv2.setNumThreads(args.threads)
    if args.row not in ("lfw", "frames", "verdict", "task"):
        warm_up()
    args.measure(args)


if __name__ == "__main__":
    main()
