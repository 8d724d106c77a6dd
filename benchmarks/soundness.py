"""Does an alignment ever collapse without saying so? Digits under perspective warps of known size, many seeds.

    python benchmarks/soundness.py [-o soundness] [--seeds 10] [--digits 0123456789] [--sigmas 0,0.1,0.2,0.3]
                                   [--images 500] [--method deep]

A cell is one seed, digit and noise level: `congeal align` on the first 500 images of `perspective:DIGIT@SIGMA`. The run
says itself whether it collapsed (metrics.json). Beside that stands what it cannot know, measured here from the aligned
files and the true warps:

ink      light in the aligned images as a share of that in the untouched ones; a set that shrank or left loses it
spread   the same for single images: the share of images that kept less than half or got more than twice their light
corners  median corner error against the untouched images, of the start and of the result, in pixels; one common warp is
         taken out of both. For the reader only: people write with a slant, so the untouched images are not aligned

A cell is *collapsed* if ink is outside 0.8 to 1.25 or a tenth of the images lost or doubled their light. A collapsed
cell that does not call itself collapsed is an undeclared collapse: it is named, and the exit code is 1.

Each cell is a run folder that is removed when its row is written; the same command again runs only what is missing.
MNIST is read from $CONGEAL_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from congeal import align, open_images
from congeal.evaluation import corner_error

INK = (0.8, 1.25)
MOST_CHANGED = 0.1  # share of images


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("soundness"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--digits", default="0123456789")
    parser.add_argument("--sigmas", default="0,0.1,0.2,0.3")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--method", default="joint")
    parser.add_argument("--cells", type=int, help="stop after so many new cells")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    cells = list(product(range(options.seeds), options.digits, map(float, options.sigmas.split(","))))
    new = 0
    for seed, digit, sigma in cells:
        name = f"{options.method}-{options.images}-{digit}-{sigma:g}-{seed}"
        if (options.output / f"{name}.json").exists():
            continue
        if new == options.cells:
            break
        row = measure(options, seed, digit, sigma, options.output / name)
        whole = options.output / f"{name}.tmp"
        whole.write_text(json.dumps(row, indent=1))
        os.replace(whole, options.output / f"{name}.json")
        shutil.rmtree(options.output / name)
        print(line(row), flush=True)
        new += 1
    return summary(options.output, len(cells))


def measure(options: argparse.Namespace, seed: int, digit: str, sigma: float, folder: Path) -> dict[str, Any]:
    """Run one cell; gives what the run says of itself and what is true."""
    source = f"perspective:{digit}@{sigma:g}"
    began = time.perf_counter()
    result = align(
        source, folder, method=options.method, size=28, limit=options.images, seed=seed, output_format="npy", quiet=True
    )
    seconds = time.perf_counter() - began
    images = open_images(source, limit=options.images)
    size = images.initial_size
    aligned = np.load(folder / "aligned" / "aligned.npy", mmap_mode="r")
    untouched = light(images.batch(np.arange(len(images))))
    share = light(aligned) / np.maximum(untouched, 1e-9)
    before, after = (
        float(np.median(corner_error(matrices, images.truth, size)))
        for matrices in (images.initial, result.transforms.matrices)
    )
    metrics = result.metrics
    return {
        "seed": seed,
        "digit": digit,
        "sigma": sigma,
        "verdict": metrics["verdict"],
        "collapsed": metrics["collapsed"],
        "ink": float(light(aligned).sum() / untouched.sum()),
        "spread": float(((share < 0.5) | (share > 2)).mean()),
        "before": before,
        "after": after,
        "apsnr_before": metrics["apsnr_before"],
        "apsnr_after": metrics["apsnr_after"],
        "energy_ratio": metrics["energy_ratio"],
        "seconds": seconds,
    }


def light(images: np.ndarray) -> np.ndarray:
    """(N, …) → (N,) sum of the pixel values."""
    return np.asarray(images, dtype=np.float64).reshape(len(images), -1).sum(1)


def undeclared(row: dict[str, Any]) -> bool:
    """Whether the set collapsed and the run does not say so."""
    collapsed = not INK[0] <= row["ink"] <= INK[1] or row["spread"] > MOST_CHANGED
    return collapsed and not row["collapsed"]


def line(row: dict[str, Any]) -> str:
    """A row for the reader."""
    told = "UNDECLARED" if undeclared(row) else ""
    return (
        f"digit {row['digit']} σ {row['sigma']:4.2f} seed {row['seed']:2d}  {row['verdict']:10s} ink {row['ink']:5.2f} "
        f"spread {row['spread']:5.3f} corners {row['before']:6.2f} → {row['after']:6.2f} px "
        f"APSNR {row['apsnr_before']:5.2f} → {row['apsnr_after']:5.2f} dB {row['seconds']:6.0f} s {told}"
    )


def summary(output: Path, wanted: int) -> int:
    """All cells so far, by noise level; 1 if one of them collapsed without saying so."""
    rows = [json.loads(path.read_text()) for path in sorted(output.glob("*.json"))]
    print(f"{len(rows)} of {wanted} cells")
    for sigma in sorted({row["sigma"] for row in rows}):
        some = [row for row in rows if row["sigma"] == sigma]
        said = sum(row["collapsed"] for row in some)
        silent = [row for row in some if undeclared(row)]
        after = np.median([row["after"] for row in some])
        print(
            f"σ {sigma:4.2f}: {len(some):4d} cells, {said:3d} collapsed and said so, {len(silent):3d} undeclared, "
            f"median corner error {after:.2f} px"
        )
        for row in silent:
            print(f"  {line(row)}")
    return 1 if any(map(undeclared, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
