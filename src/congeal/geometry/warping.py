"""Warps: sample images through matrices. The only file that knows `grid_sample` and its `align_corners`."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as functional

from congeal.errors import CongealError
from congeal.geometry.matrix import MIN_DENOMINATOR, Size, normalise

Mode = Literal["bilinear", "bicubic"]
Padding = Literal["zeros", "border", "reflect"]

PIXELS_AT_ONCE = 400_000
"""Output pixels that are sampled together, so that the sampling grid stays in the processor's cache."""
_PADDING = {"zeros": "zeros", "border": "border", "reflect": "reflection"}


def warp(
    images: torch.Tensor,
    source_from_output: torch.Tensor,
    size: Size | None = None,
    *,
    mode: Mode = "bilinear",
    padding: Padding = "zeros",
) -> torch.Tensor:
    """Sample `images` (B, C, H, W) through `source_from_output` (B, 3, 3), in pixels → (B, C, h, w).

    Direction: output pixel (x, y) takes the value at `source_from_output @ (x, y, 1)` in its image. `size` (h, w)
    defaults to the images' own. One matrix (3, 3) serves a whole batch, one image (1, C, H, W) a batch of matrices.
    Differentiable in both arguments; the identity returns the image bit for bit.
    """
    if images.ndim != 4:
        raise CongealError(f"warp needs images of shape (batch, channels, height, width), got {tuple(images.shape)}")
    if padding not in _PADDING or mode not in ("bilinear", "bicubic"):
        raise CongealError(f"unknown mode '{mode}' or padding '{padding}': bilinear, bicubic; zeros, border, reflect")
    source_size = (images.shape[-2], images.shape[-1])
    size = source_size if size is None else size
    if torch.compiler.is_exporting():  # a graph has no place for decisions on values or on the batch size
        unit = to_units(source_from_output.to(images.dtype), source_size, size)
        return sample_in_units(images, unit, size, mode, padding)
    matrices = source_from_output.expand(images.shape[0], 3, 3) if source_from_output.ndim == 2 else source_from_output
    if images.shape[0] == 1 and matrices.shape[0] > 1:
        images = images.expand(matrices.shape[0], -1, -1, -1)
    matrices = matrices.to(images.dtype)
    unit = to_units(matrices, source_size, size)
    step = max(1, PIXELS_AT_ONCE // (size[0] * size[1]))
    if len(images) <= step or (torch.is_grad_enabled() and (images.requires_grad or matrices.requires_grad)):
        out = sample_in_units(images, unit, size, mode, padding)
    else:
        parts = zip(images.split(step), unit.split(step), strict=True)
        out = torch.cat([sample_in_units(*part, size, mode, padding) for part in parts])
    return out if size != source_size else _keep_still(images, matrices, out)


def sample_in_units(
    images: torch.Tensor, unit: torch.Tensor, size: Size, mode: Mode = "bilinear", padding: Padding = "zeros"
) -> torch.Tensor:
    """`warp` for those who keep their matrices in the sampler's own coordinates (`to_units`) over many steps."""
    grid = sampling_grid_in_units(unit, size)
    return functional.grid_sample(images, grid, mode=mode, padding_mode=_PADDING[padding], align_corners=False)


def sampling_grid_in_units(unit: torch.Tensor, size: Size) -> torch.Tensor:
    """Where each output pixel looks: (B, h, w, 2) in the sampler's own coordinates, from unit_from_output (B, 3, 3)."""
    return project(unit, size)[:, :2].permute(0, 2, 3, 1)


def lookup(images: torch.Tensor, grid: torch.Tensor, mode: Literal["nearest", "bilinear"]) -> torch.Tensor:
    """Images (B, C, H, W) at a grid (B, h, w, 2) in the sampler's coordinates; outside, the outermost pixels go on."""
    return functional.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)


def _keep_still(images: torch.Tensor, matrices: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """grid_sample's rounding moves samples by about 1e-6 px; where nothing moves, the image itself is the answer."""
    still = (matrices == torch.eye(3, dtype=matrices.dtype, device=matrices.device)).flatten(1).all(1)
    if not bool(still.any()):
        return out
    exact = images if not out.requires_grad else images.detach() + (out - out.detach())
    return torch.where(still[:, None, None, None], exact, out)


def sampling_grid(source_from_output: torch.Tensor, size: Size) -> torch.Tensor:
    """Where each output pixel looks: (B, h, w, 2) source pixels (x, y)."""
    return project(one_at_centre(source_from_output, size), size)[:, :2].permute(0, 2, 3, 1)


def sample_points(
    images: torch.Tensor, source_from_output: torch.Tensor, points: torch.Tensor, size: Size
) -> torch.Tensor:
    """Values (B, M) of images (B, 1, H, W) at output pixels `points` (M, 2) alone; outside, the outermost pixels go on.

    size: of the output frame that the points are pixels of.
    """
    unit = to_units(source_from_output, (images.shape[-2], images.shape[-1]), size).to(images.dtype)
    mapped = _mapped(unit, points)
    place = mapped[:, :2].div_(mapped[:, 2:].clamp_(min=MIN_DENOMINATOR))
    return lookup(images, place.transpose(1, 2)[:, None], "bilinear")[:, 0, 0]


def points_inside(
    source_from_output: torch.Tensor, points: torch.Tensor, source_size: Size, size: Size
) -> torch.Tensor:
    """(B, M) whether output pixels `points` (M, 2) look inside the outermost pixel centres of their image.

    If the corners of a rectangle do, all of it does.
    """
    return _inside(_mapped(to_units(source_from_output, source_size, size), points), source_size)


def _inside(mapped: torch.Tensor, source_size: Size) -> torch.Tensor:
    """(B, M) whether points lie inside the outermost pixel centres, from what `_mapped` gives."""
    depth = mapped[:, 2]
    result = depth > MIN_DENOMINATOR
    for axis, length in ((0, source_size[1]), (1, source_size[0])):
        result &= mapped[:, axis].abs() <= (1 - 1 / length) * depth
    return result


def _mapped(unit: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Points (M, 2) through unit_from_output (B, 3, 3): (B, 3, M), not divided yet."""
    x, y = points[:, 0].to(unit), points[:, 1].to(unit)
    return torch.addcmul(unit[:, :, 2:], unit[:, :, :1], x).addcmul_(unit[:, :, 1:2], y)


def sample_at(image: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (..., M) of one image (H, W) at pixels `places` (..., M, 2), and whether each lies inside (..., M); or of
    images (E, H, W), each at its own places (E, ..., M, 2)."""
    height, width = image.shape[-2:]
    sides = places.new_tensor([width, height])
    inside = ((places >= 0) & (places <= sides - 1)).all(-1)
    images = image if image.ndim == 3 else image[None]
    unit = ((2 * places + 1) / sides - 1).to(image.dtype).reshape(len(images), 1, -1, 2)
    values = lookup(images[:, None], unit, "bilinear")
    return values.view(places.shape[:-1]), inside


def coverage(source_from_output: torch.Tensor, source_size: Size, size: Size) -> torch.Tensor:
    """(B, 1, h, w) in [0, 1]: how much of each bilinear sample comes from inside the source image.

    Pixels at or behind the horizon have none.
    """
    unit = to_units(source_from_output, source_size, size)
    right, bottom = size[1] - 1.0, size[0] - 1.0
    frame = unit.new_tensor([[0, 0], [right, 0], [right, bottom], [0, bottom]])
    whole = _inside(_mapped(unit, frame), source_size).all(1)
    out = unit.new_ones(len(unit), 1, *size)
    for rows in torch.nonzero(~whole)[:, 0].split(max(1, PIXELS_AT_ONCE // (size[0] * size[1]))):
        projected = project(unit[rows], size)
        share = (projected[:, 2] > MIN_DENOMINATOR).to(unit.dtype)
        for axis, length in ((0, source_size[1]), (1, source_size[0])):  # from -1 to 1 between the outer edges
            share *= projected[:, axis].abs_().mul_(-length / 2).add_((length + 1) / 2).clamp_(0, 1)
        out[rows, 0] = share
    return out


def to_units(source_from_output: torch.Tensor, source_size: Size, size: Size) -> torch.Tensor:
    """Into the sampler's coordinates, which put the edges of the source image at -1 and 1: unit_from_output (B, 3, 3).

    Multiplied from the right by steps of the output frame, these stay what they are.
    """
    height, width = source_size
    unit_from_source = source_from_output.new_tensor(
        [[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1.0]]
    )
    return one_at_centre(unit_from_source @ source_from_output, size)


def from_units(unit_from_output: torch.Tensor, source_size: Size) -> torch.Tensor:
    """Back to pixels: source_from_output (B, 3, 3), last entry 1."""
    return normalise(to_pixels(unit_from_output, source_size))


def to_pixels(unit_from_output: torch.Tensor, source_size: Size) -> torch.Tensor:
    """Back to pixels, the denominator as it is: (B, 3, 3)."""
    height, width = source_size
    source_from_unit = unit_from_output.new_tensor(
        [[width / 2, 0, (width - 1) / 2], [0, height / 2, (height - 1) / 2], [0, 0, 1.0]]
    )
    return source_from_unit @ unit_from_output


def one_at_centre(matrices: torch.Tensor, size: Size) -> torch.Tensor:
    """The same homographies, scaled so that the denominator is 1 at the centre of the frame they start from."""
    centre = matrices.new_tensor([(size[1] - 1) / 2, (size[0] - 1) / 2, 1])
    depth = (matrices[:, 2:] * centre).sum(-1, keepdim=True)
    return matrices / torch.where(depth.abs() < 1e-6, 1e-6, depth)


def project(matrices: torch.Tensor, size: Size) -> torch.Tensor:
    """Every pixel of a frame through (B, 3, 3) → (B, 3, h, w): x, y, and the guarded denominator."""
    # One sum per pixel instead of a matrix product, whose rounding depends on how many images there are: the result of
    # an image must not depend on its neighbours.
    x, y = (torch.arange(n, dtype=matrices.dtype, device=matrices.device) for n in (size[1], size[0]))
    rows = matrices[:, :, 1, None] * y + matrices[:, :, 2, None]
    full = (matrices[:, :, 0, None] * x)[:, :, None] + rows[..., None]
    if full.requires_grad:
        depth = full[:, 2:].clamp(min=MIN_DENOMINATOR)
        return torch.cat([full[:, :2] / depth, depth], 1)
    depth = full[:, 2:].clamp_(min=MIN_DENOMINATOR)
    full[:, :2].div_(depth)
    return full
