"""The losses: distortion D and complexity C of the paper, and what keeps them from rewarding an emptier frame.

    loss = D + λ C
    D = Σ_i≠j ‖I_i∘p_i − I_j‖₁                                     likeness to the reference I_j
    C = Σ_i ‖Dec(Enc(I_i∘p_i)) − I_i∘p_i‖₁ + γ wᵀ Enc(I_i∘p_i)     what a small auto-encoder fails to rebuild,
    w_l = l^k / Σ_l l^k                                            and the code it uses, late units costing more

Norms are sums over pixels and means over the batch. Batches are drawn from all images, so D also sees the reference
itself now and then, which the paper leaves out; one image in a thousand makes no difference.

The paper says that the reference in D avoids shrinking. Here D only slows it: as printed, both losses fall when the
object shrinks. With raw D digits end at a mean energy ratio of 0.88, under 20 % warps at 0.21, with raw C in an empty
frame (docs/results.md, ablation). Divided by the total intensity (`by_ink`) they do not.
"""

from __future__ import annotations

import torch

from congeal.geometry import mean_matrix
from congeal.geometry.matrix import Size, corners, invert

MIN_DEPTH = 0.1
"""Projective denominator at the frame's corner below which a corner is as good as at infinity. Chosen by judgement: a
step that large is lost anyway, and the loss stays finite."""
MIN_INK = 1e-3
"""Losses are divided by at least this: a blank image has no share of anything. Smaller than one grey value."""


def distortion(
    aligned: torch.Tensor, reference: torch.Tensor, weights: torch.Tensor | None = None, *, by_ink: bool = False
) -> torch.Tensor:
    """D of aligned images (B, C, h, w) and a reference (C, h, w). weights: of pixels; by_ink divides by both's ink."""
    error, ink = _difference(aligned, reference, weights)
    return (error / ink if by_ink else error).mean()


def complexity(
    aligned: torch.Tensor,
    rebuilt: torch.Tensor,
    code: torch.Tensor,
    position: torch.Tensor,
    capacity_penalty: float,
    weights: torch.Tensor | None = None,
    *,
    by_ink: bool = False,
) -> torch.Tensor:
    """C of aligned images (B, C, h, w), what the auto-encoder made of them, and its code (B, |z|).

    position (|z|,) is w, capacity_penalty γ. by_ink divides all of it, the term of γ too, by the ink of image and
    reconstruction. An auto-encoder that is trained apart learns on C without this division.
    """
    error, ink = _difference(aligned, rebuilt, weights)
    cost = error + capacity_penalty * (code @ position)
    return (cost / ink if by_ink else cost).mean()


def positional_weights(size: int, power: float) -> torch.Tensor:
    """w_l = l^k / Σ l^k: late units of the code cost more."""
    weights = torch.arange(1, size + 1, dtype=torch.float32) ** power
    return weights / weights.sum()


def _difference(
    shown: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) how much two sets of images differ, and the ink of both, to divide by."""
    error, ink = (shown - wanted).abs(), shown.abs() + wanted.abs()
    if weights is not None:
        error, ink = error * weights, ink * weights
    return error.flatten(1).sum(1), ink.flatten(1).sum(1).clamp(min=MIN_INK)


def without_common_mode(stack_from_frame: torch.Tensor, frame: Size) -> torch.Tensor:
    """H_i · M⁻¹ · stop_gradient(M), M the batch's mean: the same values, but no gradient for moving all together.

    C falls when everything shrinks; this takes that reward away and leaves what sets images apart.
    """
    mean = mean_matrix(stack_from_frame, frame)
    return stack_from_frame @ invert(mean) @ mean.detach()


def self_supervision(poses: list[torch.Tensor], answer: torch.Tensor, frame: Size) -> torch.Tensor:
    """S: how far each level's answer is from the known one: log(1 + distance), later levels counting more.

    The distance of an image is the mean (L1, in frame pixels) over the frame's corners.
    """
    corner = torch.as_tensor(corners(frame), dtype=answer.dtype, device=answer.device)
    loss = torch.zeros((), device=answer.device, dtype=answer.dtype)
    for level, pose in enumerate(poses, 1):
        off = invert(answer) @ pose
        moved = corner @ off[..., :2].transpose(1, 2) + off[..., None, :, 2]
        distance = (moved[..., :2] / moved[..., 2:].clamp(min=MIN_DEPTH) - corner).abs().mean((1, 2))
        loss = loss + level / len(poses) * torch.log1p(distance).mean()
    return loss
