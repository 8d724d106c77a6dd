"""Stack noisy frames through poses that were found, against stacking them through the true ones.

    python benchmarks/stacking.py [--frames 100] [--method deep]

100 made frames of 160×160: parts of scikit-image's photograph of a cameraman, shifted by up to 8 px and turned by up to
2°, with noise of 10 % of the range, 2 % hot pixels, and 5 % of the frames nothing but noise. PSNR in dB against the
clean scene, away from the edges, for each way to stack; the true poses leave out the bad frames.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from skimage import data

import congeal
from congeal.images import warp_pixels
from congeal.images.resample import SHARP
from congeal.opening import open_images
from congeal.stacking.combine import Frames
from congeal.stacking.stack import combine_images
from congeal.transforms import Transforms

SIDE, EDGE = 160, 16


def make_frames(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Frames (n, h, w) uint8, the scene, scene_from_frame (n, 3, 3), and which frames are bad (n,)."""
    rng = np.random.default_rng(seed)
    scene = data.camera().astype(np.float32)
    turn = np.deg2rad(rng.uniform(-2, 2, n))
    matrices = np.tile(np.eye(3), (n, 1, 1))
    matrices[:, 0, 0] = matrices[:, 1, 1] = np.cos(turn)
    matrices[:, 1, 0], matrices[:, 0, 1] = np.sin(turn), -np.sin(turn)
    matrices[:, :2, 2] = rng.uniform(-8, 8, (n, 2)) + np.array([190, 80])
    frames = np.stack([warp_pixels(scene, matrix, (SIDE, SIDE)) for matrix in matrices])
    frames += rng.normal(0, 25.5, frames.shape)
    frames[rng.random(frames.shape) < 0.02] = 255
    bad = np.arange(n) % 20 == 7
    frames[bad] = rng.uniform(0, 255, (int(bad.sum()), SIDE, SIDE))
    return np.clip(np.rint(frames), 0, 255).astype(np.uint8), scene, matrices, bad


def decibels(picture: np.ndarray, clean: np.ndarray) -> float:
    inside = (slice(EDGE, -EDGE), slice(EDGE, -EDGE))
    return float(10 * np.log10(255**2 / np.nanmean((picture[inside] - clean[inside]) ** 2)))


def common_matrix(matrices: np.ndarray) -> np.ndarray:
    """The one rigid matrix that (n, 3, 3) nearly equal ones are, in the median."""
    middle = np.median(matrices, axis=0)
    turn = np.arctan2(middle[1, 0] - middle[0, 1], middle[0, 0] + middle[1, 1])
    return np.array(
        [[np.cos(turn), -np.sin(turn), middle[0, 2]], [np.sin(turn), np.cos(turn), middle[1, 2]], [0, 0, 1]]
    )


def measure(n: int = 100, method: str = "joint") -> dict[str, tuple[float, float]]:
    """Print a table, and give PSNR through found and true poses by way of stacking."""
    frames, scene, scene_from_frame, bad = make_frames(n)
    result = {}
    with tempfile.TemporaryDirectory(prefix="stacking-") as name:
        np.save(Path(name) / "frames.npy", frames)
        begun = time.perf_counter()
        run = congeal.align(Path(name) / "frames.npy", Path(name) / "run", method=method, motion="rigid", quiet=True)
        seconds = time.perf_counter() - begun
        found = run.transforms
        used = np.array([int(id) for id in congeal.stack(run).ids])
        print(
            f"{len(used)} of {n} frames used, {int(bad[used].sum())} bad ones among them; aligned in {seconds:.0f} s\n"
        )
        scene_from_aligned = common_matrix(scene_from_frame[used] @ np.linalg.inv(found.matrices[used]))
        clean = warp_pixels(scene, scene_from_aligned, (SIDE, SIDE))
        true = np.linalg.inv(scene_from_aligned) @ scene_from_frame
        truth = Transforms(found.ids, true, found.source_sizes, (SIDE, SIDE))
        best = Frames.of(open_images(frames), truth, np.flatnonzero(~bad), SHARP)
        print("| way | found poses, dB | true poses, dB |\n|---|---|---|")
        for way in ("clip", "median", "mean", "sharp"):
            ours = decibels(congeal.stack(run, method=way).picture, clean)
            theirs = decibels(combine_images(best, way, 3.0, 1.0, quiet=True)[0][..., 0], clean)
            result[way] = ours, theirs
            print(f"| {way} | {ours:.2f} | {theirs:.2f} |", flush=True)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--method", default="joint")
    args = parser.parse_args()
    measure(args.frames, args.method)
