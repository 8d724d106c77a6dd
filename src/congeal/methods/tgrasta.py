"""Transformed Grassmannian robust adaptive subspace tracking: alignment to a subspace learnt image by image.

He, Zhang, Balzano and Tao (2014), "Iterative Grassmannian Optimization for Robust Image Alignment"; the step size is
that of He, Balzano and Szlam (2012), "Incremental Gradient on the Grassmannian for Online Foreground and Background
Separation in Subsampled Video".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.best import Best
from congeal.methods.guards import chunks, set_kind
from congeal.methods.job import Job
from congeal.methods.lowrank import Linear, MotionGauge, linearise, move, soft

MODES = ("batch", "online", "frozen")
_WARM_UP = 20  # images an online subspace is learnt on before it goes on alone
_FROZEN_SHARE, _FROZEN_MOST = 0.2, 150  # of the images a frozen subspace is learnt on


@dataclass(kw_only=True, eq=False)
class TGRASTA(Method):
    """Minimises Σ_i ‖e_i‖₁ where image i, aligned and of unit norm, is U w_i + e_i with one orthonormal basis U.

    `batch` learns U on all images; `online` on the first 20, then passes once over the others and lets U follow;
    `frozen` on a fifth of them, 150 at most, and aligns the others to it. Images the fit has not seen are aligned to U
    as it ended.
    """

    motion: str = "affine"
    mode: str = "batch"
    """batch, online or frozen."""
    dimension: int = 15
    """Columns of U. With guards at most a fifth of the images it is learnt on, or U would learn the misalignment."""
    linearisations: int = 10
    """Times that images are warped anew; each ends with one step of every image."""
    sweeps: int = 5
    """Passes of the subspace over the images between two warps."""
    solver_iterations: int = 20
    """Of the per-image solver."""
    together: int = 16
    """Images solved at once before U takes their steps one after the other; 1 is as published, and slower."""
    smoothing: float = 0.4
    """Gaussian blur of the images, in frame pixels."""
    max_step: float = 3.0
    """With guards: no corner moves farther than this many pixels in one step."""

    name: ClassVar[str] = "tgrasta"

    def _check_parameters(self) -> None:
        if self.mode not in MODES:
            raise CongealError(f"tgrasta has no mode '{self.mode}': choose one of {', '.join(MODES)}")
        if min(self.dimension, self.linearisations, self.sweeps, self.solver_iterations, self.together) < 1:
            raise CongealError(
                "dimension, linearisations, sweeps, solver_iterations and together are counts: at least 1"
            )

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        kind = set_kind(stack)
        learners, others = self._split(stack)
        total = self.linearisations + len(others)
        state = job.load() or self._begin(stack, len(learners))
        self._tracker = Tracker.restore(state)
        found, best = state["found"], Best(state["found"][learners], state.get("best"))
        gauge = MotionGauge(stack.take(learners) if False else stack, self.motion, kind, float(state["zoom"]))
        raise NotImplementedError
