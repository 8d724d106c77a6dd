"""What the low-rank methods share: images as rows of a matrix, shrinkage, and the inner solver.

Each image is warped into the frame, flattened and scaled to unit norm; the set is a matrix D (n, m). A set of aligned
images is a matrix of low rank A plus sparse errors E. To first order a small motion changes row i by Q_i d_i, where
the columns of Q_i (m, k) are an orthonormal basis of that image's motion Jacobian. Rows and bases are made in float64;
the solver works in float32, and squares in float64 where singular values far below the largest count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from congeal.geometry import sampling_grid
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.registration.batching import chunks, pixel_area
from congeal.registration.features import ImageFeatures
from congeal.registration.gauss_newton import GaussNewton, motion_field

EARLY_STEPS = 12
"""First steps of a solver, in which its matrices still change much, so that singular vectors take two power steps."""
FLOAT32_SHARE = 0.01
"""Of the largest singular value: thresholds above it need no float64. Squared in float32, values below some 3e-4 of the
largest drown."""
MAX_PARTIAL_SHARE = 0.7
"""Of all singular vectors: beyond it finding all of them is less work. Chosen by judgement."""
BORDER_PX = 4
"""Zeros around an image while it is sampled: space for the kernel's four taps and for the edge's own gradient."""
MIN_EIGENVALUE = 1e-10
"""Of the largest eigenvalue of JᵀJ: a direction below it cannot move the image."""
FIRST_PENALTY = 1.25
"""Of the solver, over the spectral norm: as published."""


def soft(x: torch.Tensor, threshold: float) -> torch.Tensor:
    """Shrink towards zero: sign(x)·max(|x| − threshold, 0)."""
    return torch.nn.functional.softshrink(x, threshold)


# ---- images and their Jacobians as matrices


@dataclass
class Linear:
    """The set around its current transforms, n images of m = channels · frame pixels."""

    data: torch.Tensor  # (n, m) unit rows; zero for images with nothing in the frame
    basis: torch.Tensor  # (n, k, m) rows are the columns of Q_i; zero for what no motion can change
    to_parameters: torch.Tensor  # (n, k, k) d_i → motion parameters
    ink: float  # of all images together as the frame shows them, before they were scaled


def linearise(
    stack: Stack,
    found: torch.Tensor,
    motion: str,
    smoothing: float,
    image_features: ImageFeatures,
    rows: np.ndarray | None = None,
    dtype: torch.dtype = torch.float32,
) -> Linear:
    """Images `rows` of the stack (all by default) through their stack_from_frame `found` (len(rows), 3, 3).

    smoothing: Gaussian blur in frame pixels. Gradients are taken on the source image and warped with it. dtype: in
    which images are blurred and sampled; in float64 no image depends on how many others are sampled beside it.
    """
    rows = np.arange(len(stack)) if rows is None else rows
    sigma = smoothing * pixel_area(stack) ** 0.5
    field = motion_field(stack.frame, motion).double()
    n, m, k = len(rows), stack.channels * stack.frame[0] * stack.frame[1], len(field)
    data = torch.empty(n, m, dtype=torch.float64)
    basis = torch.empty(n, k, m, dtype=torch.float64)
    to_parameters = torch.empty(n, k, k, dtype=torch.float64)
    ink = 0.0
    for part in np.array_split(np.arange(n), len(chunks(stack))):
        if not len(part):
            continue
        images = image_features.blurred(stack.images(rows[part]).to(dtype), sigma)
        shown, dx, dy = _shown(images, found[part], stack.frame, image_features.empty_ground)
        ink += float(shown.sum())
        data[part], basis[part], to_parameters[part] = _unit_rows(shown, dx, dy, field)
    return Linear(data, basis, to_parameters, ink)


def _shown(
    images: torch.Tensor, found: torch.Tensor, size: Size, empty_ground: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images in the frame and their derivatives along the frame's x and y, each (b, c, h, w)."""
    border = (BORDER_PX,) * 4
    padded = torch.nn.functional.pad(images, border)
    # An object on empty ground goes on as zeros, so its edge counts even where it touches the border; the border of a
    # photograph is not an edge of anything.
    kernel = images.new_tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    inner = torch.nn.functional.pad(padded if empty_ground else images, (1, 1, 1, 1), mode="replicate")
    both = torch.nn.functional.conv2d(inner.flatten(0, 1)[:, None], torch.stack([kernel, kernel.T])[:, None])
    both = both if empty_ground else torch.nn.functional.pad(both, border)
    gradients = [both[:, k].view_as(padded) for k in (0, 1)]  # Sobel's
    shown = _bicubic(torch.cat([padded, *gradients], 1), found, size).double()
    image, along_x, along_y = shown.split(images.shape[1], 1)
    slope = _map_derivative(found, size)[:, :, :, None]
    return image, *(along_x * slope[:, 0, k] + along_y * slope[:, 1, k] for k in (0, 1))


def _bicubic(images: torch.Tensor, found: torch.Tensor, size: Size) -> torch.Tensor:
    """(b, c, H, W) with a border of zeros, sampled through (b, 3, 3), held within each image's own range.

    Keys' kernel with a = −½, what the literature means by bicubic. The warp of this package has a = −¾, whose
    overshoot ends RASL in a worse optimum: up to 0.3 dB on digits.
    """
    b, c, height, width = images.shape
    border = BORDER_PX
    grid = sampling_grid(found.double(), size).flatten(1, 2)  # (b, p, 2)
    last = grid.new_tensor([width - border - 3.0, height - border - 3.0])  # its fourth tap is the last in memory
    grid = torch.minimum(grid.clamp(min=1.0 - border), last)  # farther out there is nothing but zeros
    corner = grid.floor()
    weight = _keys((grid - corner).to(images.dtype))  # (4, b, p, 2)
    column, row = (corner.long() + border - 1).unbind(-1)  # of the first of four by four taps
    first = row * width + column + torch.arange(b)[:, None] * (height * width)
    tap = torch.arange(4)
    index = first[..., None, None] + tap[:, None] * width + tap  # (b, p, 4, 4)
    weights = weight[..., 1].permute(1, 2, 0)[..., :, None] * weight[..., 0].permute(1, 2, 0)[..., None, :]
    # A sample is a weighted sum of 16 rows of a table of pixels, which is what this function computes in one pass.
    table = images.permute(0, 2, 3, 1).reshape(-1, c)
    out = torch.nn.functional.embedding_bag(
        index.view(-1, 16), table, mode="sum", per_sample_weights=weights.reshape(-1, 16)
    )
    out = out.view(b, -1, c).transpose(1, 2)
    flat = images.flatten(2)
    lowest, highest = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    return torch.minimum(torch.maximum(out, lowest), highest).reshape(b, c, *size)


def _keys(t: torch.Tensor) -> torch.Tensor:
    """Weights of the four taps at distances 1 + t, t, 1 − t, 2 − t: (4, ...)."""
    t2, t3 = t * t, t * t * t
    return torch.stack([-t3 + 2 * t2 - t, 3 * t3 - 5 * t2 + 2, -3 * t3 + 4 * t2 + t, t3 - t2]) / 2


def _map_derivative(found: torch.Tensor, size: Size) -> torch.Tensor:
    """(b, 2, 2, h, w) derivative of the stack point (X, Y) by the frame point (x, y)."""
    matrix = found.double()[..., None, None]
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in size), indexing="ij")
    target = matrix[:, :, 0] * x + matrix[:, :, 1] * y + matrix[:, :, 2]
    centre = matrix[:, 2, 0] * ((size[1] - 1) / 2) + matrix[:, 2, 1] * ((size[0] - 1) / 2) + matrix[:, 2, 2]
    depth = (target[:, 2] / centre).clamp(min=0.1) * centre  # as the warp holds points near the horizon
    place = target[:, :2] / depth[:, None]
    return (matrix[:, :2, :2] - place[:, :, None] * matrix[:, 2:, :2]) / depth[:, None, None]


def _unit_rows(
    image: torch.Tensor, dx: torch.Tensor, dy: torch.Tensor, field: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows scaled to unit norm, the Jacobian of the scaled rows as an orthonormal basis, and the way back."""
    norm = image.flatten(1).norm(dim=1)[:, None, None, None]
    scale = torch.where(norm > 1e-6, 1 / norm.clamp(min=1e-6), 0.0)  # zero where the frame shows nothing
    unit = image * scale
    # The derivative of y/‖y‖. As published it is taken of the gradients, before they are multiplied by the motion.
    dx, dy = (g * scale - unit * (unit * g * scale).sum((1, 2, 3), keepdim=True) for g in (dx, dy))
    jacobian = (dx[:, None] * field[:, 0, None] + dy[:, None] * field[:, 1, None]).flatten(2)  # (b, k, m)
    # Any orthonormal basis of the Jacobian's columns gives the same problem; this one leaves out what cannot move.
    value, vector = torch.linalg.eigh(jacobian @ jacobian.transpose(1, 2))
    known = value > MIN_EIGENVALUE * value[:, -1:].clamp(min=1e-20)
    way = vector * torch.where(known, value.clamp(min=1e-30).rsqrt(), 0.0)[:, None]
    return unit.flatten(1), way.transpose(1, 2) @ jacobian, way


def move(found: torch.Tensor, line: Linear, d: torch.Tensor, motion: str, size: Size, max_step: float) -> torch.Tensor:
    """stack_from_frame after the steps d (n, k), none of which moves a corner by more than max_step frame pixels.

    A step to nowhere, as happens where max_step is infinite, is not taken.
    """
    delta = (line.to_parameters @ d[..., None])[..., 0]
    moved = GaussNewton(motion, size, max_step=max_step).compose(found, -delta)
    there = (moved.isfinite() & (moved.abs() < 1e6)).flatten(1).all(1)
    return torch.where(there[:, None, None], moved, found)


# ---- singular values


class Spectrum:
    """Singular values of a series of (n, m) matrices that change little, through the Gram matrix of the smaller side.

    Squaring costs digits below 1e-8 of the largest value; nothing here needs them. `keep`: how many of the largest
    values are never shrunk.
    """

    def __init__(self, shape: Sequence[int], keep: int = 0) -> None:
        self.keep = keep
        self._wide = shape[0] < shape[1]
        self._rank, self._steps, self._largest = 20, 0, math.inf
        # Of the last Gram matrix, ascending; those of small values may be older.
        self._vectors = torch.empty(0, 0, dtype=torch.float32)

    def largest(self, matrix: torch.Tensor) -> float:
        """The spectral norm."""
        value, _ = self._all(self._gram(matrix.double()))  # also fills in vectors, from which the solver begins
        self._largest = float(value[-1])
        return self._largest

    def shrink(self, matrix: torch.Tensor, threshold: float) -> tuple[torch.Tensor, float]:
        """The matrix with singular values reduced by `threshold`, and the sum of the reduced ones."""
        exact = threshold <= FLOAT32_SHARE * self._largest
        value, vector = self._eigen(self._gram(matrix.double() if exact else matrix), threshold)
        reduced = (value - threshold).clamp(min=0)
        total = float(reduced[: len(reduced) - self.keep].sum())
        if self.keep:
            reduced[-self.keep :] = value[-self.keep :]
        used = reduced > 0
        self._rank = int(used.sum())
        side, gain = vector[:, used].to(matrix.dtype), (reduced[used] / value[used]).to(matrix.dtype)
        if self._wide:
            return (side * gain) @ (side.T @ matrix), total
        return (matrix @ side) @ (side * gain).T, total

    def _gram(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix @ matrix.T if self._wide else matrix.T @ matrix

    def _eigen(self, gram: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Singular values, ascending, and vectors: all of them, or at least those above the threshold.

        The solver's matrices change little from one step to the next, so the space that the last one's vectors span,
        with some to spare, holds the new ones after a power step. On digits this leaves the cost as it is to 1e-6 and
        the steps to 0.002 px.
        """
        self._steps += 1
        wanted = self._rank + max(10, self._rank // 4)
        while self._vectors.numel() and wanted < MAX_PARTIAL_SHARE * len(gram):
            basis = self._vectors[:, -wanted:].to(gram.dtype)
            for _ in range(1 if self._steps > EARLY_STEPS else 2):
                basis = torch.linalg.qr(gram @ basis)[0]
            value, vector = torch.linalg.eigh(basis.T @ gram @ basis)
            if float(value[0]) < threshold**2:  # the smallest is already out of reach: none above it is missing
                vectors = basis @ vector
                self._vectors = torch.cat([self._vectors[:, :-wanted].to(gram.dtype), vectors], 1)
                return value.clamp(min=0).sqrt(), vectors
            wanted += wanted // 2
        return self._all(gram)

    def _all(self, gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, self._vectors = torch.linalg.eigh(gram)
        return value.clamp(min=0).sqrt(), self._vectors


# ---- the inner problem


@dataclass
class Decomposition:
    """The outcome of `decompose`: how far each image should move, and the cost reached."""

    step: torch.Tensor  # (n, k) in the bases of `Linear`
    objective: float  # ‖A‖_* + λ‖E‖₁, kept singular values left out
    iterations: int


def decompose(
    line: Linear,
    weight: float,
    spectrum: Spectrum,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    dual_scale: float | None = None,
    growth: float = 1.25,
) -> Decomposition:
    """min ‖A‖_* + weight·‖E‖₁ subject to D + Q d = A + E, by the inexact augmented Lagrange multiplier method.

    dual_scale: the multipliers start at D / dual_scale; by default the dual norm, max(‖D‖₂, max|D| / weight).
    growth: of the penalty with every step.
    """
    # Pixels that are empty in every image, and stay so under any small motion, stay empty in A and E.
    lit = (line.data.abs().amax(0) > 0) | (line.basis.abs().amax((0, 1)) > 0)
    data, basis = line.data[:, lit].float(), line.basis[..., lit].float()
    size, largest = float(data.norm()), spectrum.largest(data)
    step, errors = basis.new_zeros(basis.shape[:2]), torch.zeros_like(data)
    if not size:
        return Decomposition(step.double(), 0.0, 0)
    moved, dual = data.clone(), data / (dual_scale or max(largest, float(data.abs().max()) / weight))
    penalty, total, iterations = FIRST_PENALTY / largest, 0.0, 0
    while iterations < max_iterations:
        iterations += 1
        target = moved + dual / penalty  # D + Q d + Y/μ
        low_rank, total = spectrum.shrink(target - errors, 1 / penalty)
        target -= low_rank
        errors = soft(target, weight / penalty)
        target -= errors
        # The rows of Q are orthonormal, so what d explained so far falls out of the product.
        change = -torch.bmm(basis, target[..., None])[..., 0]
        shift = torch.bmm(change[:, None], basis)[:, 0]
        step += change
        moved += shift
        dual = penalty * (target + shift)  # Y + μ(D + Q d − A − E)
        gap = float((moved - low_rank - errors).norm())
        penalty *= growth
        if gap <= tolerance * size:
            break
    objective = total + weight * float(errors.abs().sum(dtype=torch.float64))
    return Decomposition(step.double(), objective, iterations)
