"""The paper's two losses, as printed: distortion D and complexity C.

    loss = D + λ C
    D = Σ_i≠j ‖I_i∘p_i − I_j‖₁                                likeness to the reference I_j
    C = Σ_i ‖Dec(Enc(I_i∘p_i)) − I_i∘p_i‖₁ + γ wᵀ Enc(I_i∘p_i)     what a small auto-encoder fails to rebuild,
    w_l = l^k / Σ_l l^k                                            and the code it uses, late units costing more

Norms are sums over pixels and means over the batch. Batches are drawn from all images, so D also sees the reference
itself now and then, which the paper leaves out; one image in a thousand makes no difference.

What our recipe trains on instead is in `recipe_losses.py`.
"""

from __future__ import annotations

import torch


def distortion(aligned: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """D of aligned images (B, C, h, w) and a reference (C, h, w)."""
    return (aligned - reference).abs().flatten(1).sum(1).mean()


def complexity(
    aligned: torch.Tensor, rebuilt: torch.Tensor, code: torch.Tensor, position: torch.Tensor, capacity_penalty: float
) -> torch.Tensor:
    """C of aligned images (B, C, h, w), what the auto-encoder made of them, and its code (B, |z|).

    position (|z|,) is w, capacity_penalty is γ.
    """
    error = (rebuilt - aligned).abs().flatten(1).sum(1)
    return (error + capacity_penalty * (code @ position)).mean()


def positional_weights(size: int, power: float) -> torch.Tensor:
    """w_l = l^k / Σ l^k: late units of the code cost more."""
    weights = torch.arange(1, size + 1, dtype=torch.float32) ** power
    return weights / weights.sum()
