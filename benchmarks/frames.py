"""Decode, warp, average and write 1280×960 frames, against OpenCV doing the same with as many threads.

    python benchmarks/frames.py [--threads 2] [--frames 24] [--repeats 5]

The frames are made: smooth colour texture with a little noise, which costs PNG and JPEG about what photographs cost.
OpenCV reads, warps, sums and writes a PNG per frame in a pool of threads. congeal does that and more: the
variance of the set, the picture of the start, small pictures for the report, files that are whole or absent. Both are
repeated in turn, and the best time of each counts. Ratios above 1 mean that congeal is faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from threading import Lock

import cv2
import numpy as np

import congeal.execution.threads as congeal_threads
from congeal.images import ImageSource
from congeal.opening import open_images
from congeal.pipeline.render import render_originals
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

HEIGHT, WIDTH = 960, 1280
KERNELS = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
"""Ours, and OpenCV's of the same reach. Our bicubic, the default, is a spline that keeps more detail."""


def measure(threads: int = 2, n: int = 24, repeats: int = 5, *, quick: bool = False) -> dict[str, float]:
    """Print and give frames per second of both and their ratio, for PNG and JPEG files and an array, with two
    kernels.

    Keys: "png_bilinear", "png_bilinear_opencv", "png_bilinear_ratio", and so on. quick: fewer frames, less often.
    """
    n, repeats = (8, 2) if quick else (n, repeats)
    congeal_threads.MAX_THREADS = threads
    result: dict[str, float] = {}
    frames, matrices = make_frames(n), make_warps(n)
    print(f"{n} frames of {WIDTH}×{HEIGHT}, {threads} threads, {os.cpu_count()} cores\n")
    print("| frames | kernel | congeal, images/s | OpenCV, images/s | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="frames-") as name:
        folder = Path(name)
        for kind in ("png", "jpg"):
            write_files(frames, folder / kind, kind)
        np.save(folder / "frames.npy", frames)
        sources = {"png": folder / "png", "jpg": folder / "jpg", "array": folder / "frames.npy"}
        for kernel, (kind, source) in product(KERNELS, sources.items()):
            out = folder / f"{kind}-out"
            ours = partial(with_congeal, open_images(source), matrices, out, kernel)
            seconds = best_of(repeats, out, ours, partial(with_opencv, source, matrices, out, threads, kernel))
            rates = [n / one for one in seconds]
            name = f"{kind}_{kernel}"
            result |= {name: rates[0], f"{name}_opencv": rates[1], f"{name}_ratio": rates[0] / rates[1]}
            print(f"| {kind} | {kernel} | {rates[0]:.1f} | {rates[1]:.1f} | {rates[0] / rates[1]:.2f} |", flush=True)
    return result


def make_frames(n: int) -> np.ndarray:
    """(n, 960, 1280, 3) uint8: one large texture seen at places a few pixels apart, each with noise of its own."""
    rng = np.random.default_rng(0)
    height, width = HEIGHT + 64, WIDTH + 64
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    spectra = np.fft.rfft2(rng.standard_normal((3, height, width))) / frequency**1.2
    texture = np.fft.irfft2(spectra, s=(height, width)).transpose(1, 2, 0)
    texture = 0.4 * texture + texture.mean(-1, keepdims=True)
    texture = 120 + 45 * (texture - texture.mean()) / texture.std()
    frames = np.empty((n, HEIGHT, WIDTH, 3), np.uint8)
    for frame in frames:
        y, x = rng.integers(0, 64, 2)
        frame[:] = np.clip(texture[y : y + HEIGHT, x : x + WIDTH] + rng.normal(0, 2, frame.shape), 0, 255)
    return frames


def make_warps(n: int) -> np.ndarray:
    """(n,3,3) aligned_from_source: small turns, scales, shifts and a little perspective."""
    rng = np.random.default_rng(1)
    turn, scale, shift = rng.normal(0, 0.02, n), np.exp(rng.normal(0, 0.02, n)), rng.normal(0, 12, (n, 2))
    matrices = np.tile(np.eye(3), (n, 1, 1))
    matrices[:, 0, 0] = matrices[:, 1, 1] = scale * np.cos(turn)
    matrices[:, 1, 0] = scale * np.sin(turn)
    matrices[:, 0, 1] = -matrices[:, 1, 0]
    matrices[:, :2, 2], matrices[:, 2, :2] = shift, rng.normal(0, 1e-5, (n, 2))
    return matrices


def write_files(frames: np.ndarray, folder: Path, extension: str) -> None:
    folder.mkdir()
    for k, frame in enumerate(frames):
        cv2.imwrite(str(folder / f"{k:03d}.{extension}"), frame)


def with_congeal(images: ImageSource, matrices: np.ndarray, folder: Path, kernel: str) -> None:
    n = len(images)
    sizes, score = np.tile([HEIGHT, WIDTH], (n, 1)), np.linspace(0.5, 0.9, n)
    found = Transforms(images.ids(), matrices, sizes, (HEIGHT, WIDTH), score=score)
    config = {"seed": 0, "write_aligned": True, "output_format": "auto", "interpolation": kernel}
    with RunFolder(folder).begin(config) as run:
        Transforms(images.ids(), np.tile(np.eye(3), (n, 1, 1)), sizes, (HEIGHT, WIDTH)).save(run.work / "start.npz")
        run.state["quality"] = {"kind": "photo"}
        run.state["look"] = {"black": 0, "white": 255, "channels": 3, "ranges": {"uint8": (0, 255)}}
        render_originals(run, images, found, quiet=True)


def with_opencv(source: Path, matrices: np.ndarray, folder: Path, threads: int, kernel: str) -> None:
    """Files in, files out; an array in, an array out."""
    folder.mkdir()
    total, lock = np.zeros((HEIGHT, WIDTH, 3), np.float32), Lock()
    array = np.load(source, mmap_mode="r") if source.is_file() else None
    paths = [] if array is not None else sorted(source.iterdir())
    out = None if array is None else np.lib.format.open_memmap(folder / "out.npy", "w+", np.uint8, array.shape)

    def one(k: int) -> None:
        frame = cv2.imread(str(paths[k])) if array is None else np.asarray(array[k])
        assert frame is not None
        aligned = cv2.warpPerspective(frame, matrices[k], (WIDTH, HEIGHT), flags=KERNELS[kernel])
        with lock:
            cv2.accumulate(aligned, total)
        if out is None:
            cv2.imwrite(str(folder / f"{paths[k].stem}.png"), aligned)
        else:
            out[k] = aligned

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(len(matrices))))
    cv2.imwrite(str(folder / "mean.png"), np.rint(total / len(matrices)).astype(np.uint8))


def best_of(repeats: int, out: Path, *sides: Callable[[], None]) -> list[float]:
    """The shortest time of each, run in turn; what they write to `out` is removed in between."""
    cv2.setNumThreads(1)  # the pool has the threads
    best = [float("inf")] * len(sides)
    for _ in range(repeats):
        for number, side in enumerate(sides):
            begun = time.perf_counter()
            side()
            best[number] = min(best[number], time.perf_counter() - begun)
            shutil.rmtree(out)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    measure(args.threads, args.frames, args.repeats)


if __name__ == "__main__":
    main()
