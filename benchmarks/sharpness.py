"""How sharp aligned pictures are, against pystackreg on the same stack with the same poses.

    python benchmarks/sharpness.py

Eight made frames of 400×400: scikit-image's photograph of a cameraman, turned by up to 2° and shifted by up to 6 px,
with noise of 3 grey levels. pystackreg registers them to the first and samples them with its cubic B-spline; each of
our kernels samples the same frames through pystackreg's matrices. Mean gradient, in grey levels per pixel, of all
frames but the first, which does not move; and the milliseconds that a frame takes.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from pystackreg import StackReg
from scipy import ndimage
from skimage import data

from congeal.geometry.kernels import INTERPOLATIONS
from congeal.images.resample import Sampling, warp_pixels

SIDE, FRAMES, EDGE = 400, 8, 40


def make_stack() -> np.ndarray:
    """(8, 400, 400) uint8."""
    rng = np.random.default_rng(0)
    shifts, angles = rng.uniform(-6, 6, (FRAMES, 2)), np.deg2rad(rng.uniform(-2, 2, FRAMES))
    scene = ndimage.gaussian_filter(data.camera().astype(float), 0.45)
    y, x = 1.15 * (np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2)
    frames = []
    for (down, right), angle in zip(shifts, angles, strict=True):
        rows = 255.5 + np.cos(angle) * y - np.sin(angle) * x + down
        columns = 255.5 + np.sin(angle) * y + np.cos(angle) * x + right
        frame = ndimage.map_coordinates(scene, [rows, columns], order=5, mode="mirror") + rng.normal(0, 3, x.shape)
        frames.append(np.clip(np.rint(frame), 0, 255).astype(np.uint8))
    return np.stack(frames)


def gradient(frames: np.ndarray) -> float:
    """Mean length of the gradient, away from the edges."""
    inside = np.asarray(frames, dtype=float)[:, EDGE:-EDGE, EDGE:-EDGE]
    return float(np.hypot(np.diff(inside, axis=2)[:, :-1], np.diff(inside, axis=1)[:, :, :-1]).mean())


def measure() -> dict[str, float]:
    """Print a table, and give the gradients by name."""
    torch.set_num_threads(1)
    frames = make_stack()
    stackreg = StackReg(StackReg.RIGID_BODY)
    matrices = stackreg.register_stack(frames, reference="first")
    begun = time.perf_counter()
    theirs = np.clip(stackreg.transform_stack(frames), 0, 255)[1:]
    took = {"pystackreg": (time.perf_counter() - begun) / FRAMES}
    result = {"original frames": gradient(frames[1:]), "pystackreg": gradient(theirs)}
    for kernel in INTERPOLATIONS:
        begun = time.perf_counter()
        pairs = list(zip(frames, matrices, strict=True))[1:]
        ours = [warp_pixels(frame, matrix, (SIDE, SIDE), Sampling(kernel)) for frame, matrix in pairs]
        took[kernel] = (time.perf_counter() - begun) / len(ours)
        result[kernel] = gradient(np.stack(ours))
    print("| | mean gradient | ms per frame |\n|---|---|---|")
    for name, value in result.items():
        print(f"| {name} | {value:.2f} | {1000 * took[name]:.1f} |" if name in took else f"| {name} | {value:.2f} | |")
    return result


if __name__ == "__main__":
    measure()
