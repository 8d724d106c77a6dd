"""congeal beside what people use today: pystackreg, OpenCV's ECC, the PyPI package rasl, and SimpleITK.

    python benchmarks/outside.py                     every set, every tool, one Markdown table
    python benchmarks/outside.py --sets stack lapse --tools congeal pystackreg
    python benchmarks/outside.py --only lines        lines of code of each tool, and what it can do

All tools get the same images in this process, one after the other, with two threads where they can use them. Sets are
those of benchmarks/everyday_sets.py, made of photographs that no setting was chosen on; their true warps are known.
Error: distance in pixels of the corners of the scene from where they should be, mean over the set and worst image,
after one homography for the whole set is removed (see `corner_error` there). Each tool is used as its manual shows, on
grey images, towards the first image; all but congeal are told the motion, or the nearest they have. Lines are those
that a user writes for this: the functions below without their docstrings, one statement a line, imports not counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import multiprocessing
import os
import textwrap
import time
from collections.abc import Callable
from typing import Any

import everyday_sets as sets
import numpy as np
from everyday_sets import KnownSet, corner_error

LIMIT = 60.0  # seconds for a tool on a set, for the one that has no end in sight on photographs
SETS: dict[str, tuple[str, Callable[[], KnownSet]]] = {
    "stack": ("microscope stack that drifts, 30 of 256²", lambda: sets.drift("ihc", 256, 30)),
    "lapse": (
        "16-bit lapse that drifts and turns, 20 of 512²",
        lambda: sets.drift("hubble_deep_field", 512, 20, 0, 1, 16),
    ),
    "rigid": ("a photograph turned, 12 of 256²", lambda: sets.copies("camera", 256, "rigid", 12)),
    "affine": ("a photograph, affine, 12 of 256²", lambda: sets.copies("coffee", 256, "affine", 12)),
    "perspective": ("a photograph in perspective, 12 of 256²", lambda: sets.copies("coffee", 256, "homography", 12)),
    "forms": ("filled forms by phone, 12 of 640×480", lambda: sets.forms(12)),
}


def grey(images: np.ndarray) -> np.ndarray:
    """(N, H, W) float32 in [0, 1]."""
    values = images.astype(np.float32) / images.max()
    return values.mean(-1) if values.ndim == 4 else values


# ---- the tools: each gives aligned_from_source (N,3,3)


def congeal_default(images: np.ndarray, motion: str) -> np.ndarray:
    """As it comes: nothing is told, not even the motion."""
    import congeal

    return congeal.JointAlignment().fit(images).transforms_.matrices


def congeal_lsc(images: np.ndarray, motion: str) -> np.ndarray:
    """The fast method."""
    import congeal

    return congeal.LSC(motion=motion, size=256).fit(images).transforms_.matrices


def pystackreg(images: np.ndarray, motion: str) -> np.ndarray:
    """It has no homography; an affine stands in."""
    from pystackreg import StackReg

    kinds = {"translation": StackReg.TRANSLATION, "rigid": StackReg.RIGID_BODY, "similarity": StackReg.SCALED_ROTATION}
    peer = StackReg(kinds.get(motion, StackReg.AFFINE))
    return np.linalg.inv(peer.register_stack(grey(images), reference="first", axis=0))


def opencv_ecc(images: np.ndarray, motion: str) -> np.ndarray:
    """Coarse to fine, growing from a translation: the plain call loses images that are more than a few pixels off."""
    import cv2

    growing = {
        "translation": cv2.MOTION_TRANSLATION,
        "rigid": cv2.MOTION_EUCLIDEAN,
        "affine": cv2.MOTION_AFFINE,
        "homography": cv2.MOTION_HOMOGRAPHY,
    }
    names = list(growing)[: list(growing).index("affine" if motion == "similarity" else motion) + 1]
    end = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 100, 1e-6)

    def pyramid(image: np.ndarray) -> list[np.ndarray]:
        levels = [image]
        while min(levels[0].shape) >= 96:
            levels.insert(0, cv2.resize(levels[0], None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))
        return levels

    first, *others = [pyramid(image) for image in grey(images)]
    found = [np.eye(3)]
    for levels in others:
        matrix = np.eye(3)
        for i, (template, image) in enumerate(zip(first, levels, strict=True)):
            if i:
                finer = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1]])
                matrix = finer @ matrix @ np.linalg.inv(finer)
            for name in names[-1:] if i else names:
                start = matrix[: 3 if name == "homography" else 2].astype(np.float32)
                with contextlib.suppress(cv2.error):  # "did not converge": go on from where it was
                    _, better = cv2.findTransformECC(template, image, start, growing[name], end)
                    matrix[: len(better)] = better
        found.append(matrix)
    return np.linalg.inv(np.stack(found))


def rasl_package(images: np.ndarray, motion: str) -> np.ndarray:
    """The whole set at once, from raw pixels; five pixels inside the border, as its default is."""
    import rasl
    import rasl.tform

    kinds = {
        "translation": rasl.tform.TranslateTransform,
        "rigid": rasl.EuclideanTransform,
        "similarity": rasl.SimilarityTransform,
        "affine": rasl.AffineTransform,
        "homography": rasl.ProjectiveTransform,
    }
    values = grey(images).astype(float)
    start = [kinds[motion]().inset(image.shape, 5) for image in values]
    _, _, transforms, _ = rasl.rasl(list(values), start)
    return np.linalg.inv(np.stack([transform.params for transform in transforms]))


def simpleitk(images: np.ndarray, motion: str) -> np.ndarray:
    """Gradient descent on correlation over three levels; it has no homography, so an affine stands in."""
    import SimpleITK as sitk

    kinds = {
        "translation": lambda: sitk.TranslationTransform(2),
        "rigid": sitk.Euler2DTransform,
        "similarity": sitk.Similarity2DTransform,
    }
    fixed, *others = [sitk.GetImageFromArray(image) for image in grey(images)]
    found = [np.eye(3)]
    for moving in others:
        method = sitk.ImageRegistrationMethod()
        method.SetMetricAsCorrelation()
        method.SetInterpolator(sitk.sitkLinear)
        method.SetOptimizerAsRegularStepGradientDescent(1.0, 1e-4, 200)
        method.SetOptimizerScalesFromPhysicalShift()
        method.SetShrinkFactorsPerLevel([4, 2, 1])
        method.SetSmoothingSigmasPerLevel([2, 1, 0])
        transform = kinds.get(motion, lambda: sitk.AffineTransform(2))()
        if motion != "translation":
            transform.SetCenter([(side - 1) / 2 for side in fixed.GetSize()])
        method.SetInitialTransform(transform, inPlace=True)
        method.Execute(fixed, moving)
        corners = [transform.TransformPoint(point) for point in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))]
        matrix = np.eye(3)
        matrix[:2, 2] = corners[0]
        matrix[:2, :2] = np.array([np.subtract(corners[1], corners[0]), np.subtract(corners[2], corners[0])]).T
        found.append(matrix)
    return np.linalg.inv(np.stack(found))


TOOLS: dict[str, Callable[[np.ndarray, str], np.ndarray]] = {
    "congeal": congeal_default,
    "congeal lsc": congeal_lsc,
    "pystackreg": pystackreg,
    "OpenCV ECC": opencv_ecc,
    "SimpleITK": simpleitk,
    "rasl 0.1.0": rasl_package,
}
LIMITED = ("rasl 0.1.0",)


# ---- measuring


def measured(tool: str, known: KnownSet) -> tuple[np.ndarray | None, float]:
    """Corner errors of a tool on a set, and the seconds it took; no errors if it did not end within the limit."""
    begun = time.perf_counter()
    found = limited(tool, known) if tool in LIMITED else TOOLS[tool](known.images, known.motion)
    seconds = time.perf_counter() - begun
    return None if found is None else corner_error(found, known.truth, known.size), seconds


def limited(tool: str, known: KnownSet) -> np.ndarray | None:
    """In a process of its own, which is ended at the limit; starting it takes a second or two of the time."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_in_process, args=(tool, known.images, known.motion, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(LIMIT) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def _in_process(tool: str, images: np.ndarray, motion: str, connection: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        connection.send(TOOLS[tool](images, motion))


def lines_of(tool: str) -> int:
    """Statements' lines of a tool's function: without docstring, comments, imports and its first line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(TOOLS[tool])))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    kept = [node for node in function.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    return sum(len(ast.unparse(node).splitlines()) for node in kept)


def warm_up(tools: list[str]) -> None:
    """What is loaded once is not counted: align four small images."""
    images = sets.copies("camera", 96, "translation", 4).images
    for tool in tools:
        if tool not in LIMITED:
            TOOLS[tool](images, "translation")


def table(names: list[str], tools: list[str]) -> None:
    print("Corner error in pixels, mean (worst image), and seconds.\n")
    print(line("set", "true motion", *tools))
    print(line(*["---"] * (len(tools) + 2)), flush=True)
    for name in names:
        known, cells = SETS[name][1](), []
        for tool in tools:
            errors, seconds = measured(tool, known)
            if errors is None:
                cells.append(f"not within {LIMIT:.0f} s" if seconds >= LIMIT else "failed")
            else:
                cells.append(f"{errors.mean():.2f} ({errors.max():.1f}), {seconds:.1f} s")
        print(line(SETS[name][0], known.motion, *cells), flush=True)


def abilities(tools: list[str]) -> None:
    print(line("", *tools))
    print(line(*["---"] * (len(tools) + 1)))
    print(line("lines of code for the above", *map(str, map(lines_of, tools))))


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--only", choices=("errors", "lines"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import cv2
    import SimpleITK as sitk
    import torch

    torch.set_num_threads(args.threads)
    cv2.setNumThreads(args.threads)
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(args.threads)
    if args.only != "lines":
        warm_up(args.tools)
        table(args.sets, args.tools)
        print()
    if args.only != "errors":
        abilities(args.tools)


if __name__ == "__main__":
    main()
