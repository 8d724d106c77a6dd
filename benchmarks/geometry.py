"""How fast `warp` is: against bare grid_sample on a grid that is already there, the usual affine_grid + grid_sample,
and OpenCV, all in this process on the same images and threads.

    python benchmarks/geometry.py [--threads 2]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import cv2
import numpy as np
import torch
import torch.nn.functional as functional

from congeal.geometry import homography_from_points, sampling_grid, warp

CASES = [(6000, 1, 28), (500, 1, 64), (64, 3, 250)]


def seconds(work: Callable[[], object], repeats: int = 9) -> float:
    """The fastest of several runs: everything slower is somebody else's doing."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def homographies(n: int, side: int) -> np.ndarray:
    frame = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * (side - 1.0)
    return homography_from_points(frame, frame + np.random.default_rng(0).normal(0, 0.05 * side, (n, 4, 2)))


def measure(n: int, channels: int, side: int) -> dict[str, float]:
    images = torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(0))
    matrices = homographies(n, side)
    found = torch.from_numpy(matrices).float()
    grid = (2 * sampling_grid(found, (side, side)) + 1) / side - 1
    theta = torch.eye(2, 3).repeat(n, 1, 1)
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()

    def usual() -> torch.Tensor:
        made = functional.affine_grid(theta, list(images.shape), align_corners=False)
        return functional.grid_sample(images, made, align_corners=False)

    def opencv() -> None:
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        for image, matrix in zip(arrays, matrices, strict=True):
            cv2.warpPerspective(image, matrix, (side, side), flags=flags)

    with torch.no_grad():
        return {
            "congeal.warp": seconds(lambda: warp(images, found)),
            "bare grid_sample": seconds(lambda: functional.grid_sample(images, grid, align_corners=False)),
            "affine_grid + grid_sample": seconds(usual),
            "cv2.warpPerspective": seconds(opencv),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    cv2.setNumThreads(threads)
    print(f"{threads} threads, torch {torch.__version__}, OpenCV {cv2.__version__}; speed relative to congeal.warp\n")
    print("| images | way | Mpixel/s | of congeal.warp |\n|---|---|---|---|")
    for n, channels, side in CASES:
        found = measure(n, channels, side)
        for way, took in found.items():
            share = found["congeal.warp"] / took
            print(f"| {n} × {channels} × {side}² | {way} | {n * channels * side**2 / took / 1e6:.0f} | {share:.2f} |")


if __name__ == "__main__":
    main()
