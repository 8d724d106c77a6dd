"""Sets whose answer is known, for the tests of the methods."""

from __future__ import annotations

import math

import numpy as np
import torch

from congeal import open_images
from congeal.geometry import from_normalised, matrix_from_parameters, warp
from congeal.methods.base import Method
from congeal.metrics import corner_error


def warped_digit(
    motion: str = "similarity", n: int = 20, digit: str = "3", seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Copies of one bundled digit under known warps of at most 3 px, 5° and 4% scale (none for "rigid").

    Images (n, 28, 28) uint8 and the aligned_from_source (n, 3, 3) that undo the warps.
    """
    image = torch.as_tensor(open_images(f"digits:{digit}").batch([3])[..., 0].astype(np.float32))[None]
    reach = [3 / 14 / math.sqrt(2), 3 / 14 / math.sqrt(2), math.radians(5), 0.04]
    count = {"translation": 2, "rigid": 3}.get(motion, 4)
    draws = torch.rand(n, 4, generator=torch.Generator().manual_seed(seed))[:, :count] * 2 - 1
    truth = from_normalised(matrix_from_parameters(draws * torch.tensor(reach[:count])), (28, 28))
    shown = warp(image, truth, mode="bicubic").clamp(0, 255)
    return shown[:, 0].round().numpy().astype(np.uint8), truth.double().numpy()


def errors(model: Method, truth: np.ndarray) -> tuple[float, float]:
    """Mean corner error, in pixels, before and after."""
    before = corner_error(np.broadcast_to(np.eye(3), truth.shape), truth, (28, 28))
    return float(before.mean()), float(corner_error(model.transforms_.matrices, truth, (28, 28)).mean())
