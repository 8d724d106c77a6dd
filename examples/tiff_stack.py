"""Remove the drift from a TIFF stack, as from a microscope: 16 bits in, 16 bits out.

    python examples/tiff_stack.py

Makes a drifting stack, aligns it with translations, and writes example-stack-run/aligned/aligned.tif.
"""

import numpy as np
import tifffile

import congeal


def drifting_stack(n: int = 20, size: int = 64) -> np.ndarray:
    """(n, size, size) uint16: a few spots that wander, with noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    spots, drift = rng.uniform(16, 48, (6, 2)), np.cumsum(rng.normal(0, 0.6, (n, 2)), axis=0)
    frames = [sum(np.exp(-((x - a - dx) ** 2 + (y - b - dy) ** 2) / 18) for a, b in spots) for dx, dy in drift]
    return (3000 * np.array(frames) + rng.normal(300, 30, (n, size, size))).clip(0).astype(np.uint16)


if __name__ == "__main__":
    tifffile.imwrite("example-stack.tif", drifting_stack(), photometric="minisblack")
    run = congeal.align("example-stack.tif", "example-stack-run", method="lsc", motion="translation")
    aligned = tifffile.imread(run.folder / "aligned" / "aligned.tif")
    print(f"{aligned.shape} {aligned.dtype} in {run.folder / 'aligned'}")
    print("found drift in pixels (x, y), last frame:", (-run.transforms.matrices[-1, :2, 2]).round(2))
