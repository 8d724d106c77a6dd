"""What our recipe trains on: D and C that cannot be won by emptying the frame, and S, answers the set gives itself.

As printed, both losses fall when the object shrinks: with raw D digits end at a mean energy ratio of 0.88, under 20 %
warps at 0.21, with raw C in an empty frame (docs/results.md, ablation). Divided by ink they do not.
"""

from __future__ import annotations

import torch
from torch import nn

from congeal.geometry import mean_matrix
from congeal.geometry.matrix import Size, corners, invert

_FARTHEST = 0.1  # of the projective denominator at the frame's corner: beyond it a corner is as good as at infinity
_LEAST_INK = 1e-3  # divided by at least this: a blank image has no share of anything


def _difference(
    shown: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) how much two sets of images differ, and the ink of both, to divide by."""
    error, ink = (shown - wanted).abs(), shown.abs() + wanted.abs()
    if weights is not None:
        error, ink = error * weights, ink * weights
    return error.flatten(1).sum(1), ink.flatten(1).sum(1).clamp(min=_LEAST_INK)


def weighted_distortion(
    aligned: torch.Tensor, reference: torch.Tensor, weights: torch.Tensor | None = None, *, by_ink: bool
) -> torch.Tensor:
    """D over the pixels that count. by_ink divides it by the ink of both: shrinking the object then wins nothing."""
    error, ink = _difference(aligned, reference, weights)
    return (error / ink if by_ink else error).mean()


def weighted_complexity(
    autoencoder: nn.Module,
    aligned: torch.Tensor,
    position: torch.Tensor,
    capacity_penalty: float,
    weights: torch.Tensor | None = None,
    *,
    by_ink: bool = False,
    stop_gradient: bool = False,
) -> torch.Tensor:
    """C over the pixels that count; `position` is w, `capacity_penalty` γ.

    by_ink divides it by the ink of image and reconstruction: an image wins nothing by becoming emptier, which is easier
    to rebuild. stop_gradient: the gradient stops at the reconstruction, so the image moves towards it; for an
    auto-encoder that learns in steps of its own.
    """
    rebuilt, code = autoencoder(aligned)
    if stop_gradient:
        rebuilt = rebuilt.detach()
    error, ink = _difference(aligned, rebuilt, weights)
    cost = error + capacity_penalty * (code @ position)
    return (cost / ink if by_ink else cost).mean()


def without_common_mode(stack_from_frame: torch.Tensor, frame: Size) -> torch.Tensor:
    """H_i · M⁻¹ · stop_gradient(M), M the batch's mean: the same values, but no gradient for moving all together.

    Complexity falls when everything shrinks; this takes that reward away and leaves what sets images apart.
    """
    mean = mean_matrix(stack_from_frame, frame)
    return stack_from_frame @ invert(mean) @ mean.detach()


def corner_distance(stack_from_frame: torch.Tensor, answer: torch.Tensor, frame: Size) -> torch.Tensor:
    """(B,) mean distance (L1, in frame pixels) of the frame's corners from where the right answer puts them."""
    corner = torch.as_tensor(corners(frame), dtype=answer.dtype, device=answer.device)
    off = invert(answer) @ stack_from_frame
    moved = corner @ off[..., :2].transpose(1, 2) + off[..., None, :, 2]
    landed = moved[..., :2] / moved[..., 2:].clamp(min=_FARTHEST)
    return (landed - corner).abs().mean((1, 2))


def self_supervision(poses: list[torch.Tensor], answer: torch.Tensor, frame: Size) -> torch.Tensor:
    """S: how far each level's answer is from the known one: log(1 + distance), later levels counting more."""
    share = 1 / len(poses)
    losses = [torch.log1p(corner_distance(pose, answer, frame)).mean() for pose in poses]
    return sum(
        (share * (level + 1) * loss for level, loss in enumerate(losses)),
        torch.zeros((), device=answer.device, dtype=answer.dtype),
    )
