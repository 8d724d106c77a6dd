"""Sets whose answer is known, and other help that several tests of the methods use."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import torch

from congeal import open_images
from congeal.evaluation import corner_error
from congeal.filters import gaussian_blur
from congeal.geometry import from_normalised, invert, matrix_from_parameters, warp
from congeal.images import Stack, prepare
from congeal.methods.base import Alignment, Method
from congeal.registration.template_registration import random_warps

PARAMETERS = {"translation": 2, "rigid": 3, "similarity": 4, "affine": 6, "homography": 8}


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


def digit_copies(n: int, sigma: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Copies of one bundled digit whose corners were moved at random, with deviation `sigma` times the side.

    Images (n, 28, 28) uint8 and the aligned_from_source (n, 3, 3) that undo the homographies.
    """
    copy_from_digit = random_warps(torch.full((n,), sigma), (28, 28), torch.Generator().manual_seed(seed))
    image = digits("2", 1).images(np.arange(1))
    copies = warp(image.expand(n, -1, -1, -1), invert(copy_from_digit))
    return (copies[:, 0].numpy() * 255).round().astype(np.uint8), invert(copy_from_digit.double().numpy())


def errors(model: Method, truth: np.ndarray) -> tuple[float, float]:
    """Mean corner error, in pixels, before and after."""
    before = corner_error(np.broadcast_to(np.eye(3), truth.shape), truth, (28, 28))
    return float(before.mean()), float(corner_error(model.transforms_.matrices, truth, (28, 28)).mean())


def digits(digit: str, count: int) -> Stack:
    """The first bundled images of a digit, as methods see them."""
    return prepare(open_images(f"digits:{digit}", limit=count), size=28)


def pixels(digit: str, first: int, last: int) -> np.ndarray:
    """(last − first, 28, 28) uint8: some of the bundled images of a digit."""
    return np.ascontiguousarray(open_images(f"digits:{digit}").batch(np.arange(first, last))[..., 0])


def align_new(model: Method, images: Any, **options: Any) -> Alignment:
    """What a fitted method finds for images it has not seen."""
    return model.align_new(prepare(open_images(images), size=model.size, layout=model.layout_), **options)


class Kept:
    """A checkpoint in memory that remembers every state, each as a file would hold it.

    stop_after: end the work as Ctrl-C would, after so many states.
    """

    def __init__(self, *states: bytes, stop_after: int | None = None) -> None:
        self.states, self.stop_after = list(states), stop_after

    def save(self, state: dict[str, Any]) -> None:
        file = io.BytesIO()
        torch.save(state, file)
        self.states.append(file.getvalue())
        if len(self.states) == self.stop_after:
            raise KeyboardInterrupt

    def load(self) -> dict[str, Any] | None:
        return torch.load(io.BytesIO(self.states[-1]), weights_only=True) if self.states else None


def photograph_copies(
    motion: str, side: int | tuple[int, int] = 96, n: int = 6, *, noise: float = 0.02, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A photograph under known warps of one motion, with noise (a share of white) and light that varies by 10 %.

    Images (n, side, side) uint8 and the aligned_from_source (n, 3, 3) that undo the warps. Every picture is sampled
    from a photograph of 512×512, which is larger than what it shows. side: or (height, width).
    """
    from skimage.data import camera

    height, width = size = (side, side) if isinstance(side, int) else side
    rng = torch.Generator().manual_seed(seed)
    reach = torch.tensor([0.06, 0.06, 0.06, 0.05, 0.03, 0.03, 0.03, 0.03])[: PARAMETERS[motion]]
    draws = (torch.rand(n, len(reach), generator=rng) * 2 - 1) * reach
    truth = from_normalised(matrix_from_parameters(draws), size).double()
    zoom = 512 / (1.3 * max(size))
    x, y = (255.5 - zoom * (length - 1) / 2 for length in (width, height))
    photo_from_aligned = torch.tensor([[zoom, 0, x], [0, zoom, y], [0, 0, 1]], dtype=torch.float64)
    photo = gaussian_blur(torch.as_tensor(camera().astype(np.float32))[None, None], 0.6 * zoom)
    shown = warp(photo.expand(n, -1, -1, -1), (photo_from_aligned @ truth).float(), size, mode="bicubic")
    shown = shown + 255 * noise * torch.randn(shown.shape, generator=rng)
    light = 0.9 + 0.1 * (torch.rand(n, 1, 1, 1, generator=rng) * 2 - 1)
    return (shown * light).clamp(0, 255).round()[:, 0].numpy().astype(np.uint8), truth.numpy()
