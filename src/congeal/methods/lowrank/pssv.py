"""RASL with the partial sum of singular values in place of the nuclear norm.

Oh, Tai, Bazin, Kim and Kweon (2016), "Partial Sum Minimization of Singular Values in Robust PCA: Algorithm and
Applications"; on the alignment of Peng et al. (2012), see `congeal.methods.lowrank.rasl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from congeal.methods.checks import CountOrZero
from congeal.methods.lowrank.rasl import RASL


@dataclass(kw_only=True, eq=False)
class PSSV(RASL):
    """RASL whose largest singular values are free: for few images, or a known rank. Needs roughly aligned input.

    Minimises Σ_{i>rank} σ_i(A) + λ‖E‖₁: the `rank` largest singular values cost nothing, so they do not shrink.

    Parameters
    ----------
    rank : int
        How many singular values are free; 0 is RASL.
    sparsity : float
        λ = sparsity / √(pixels). Smaller: more is explained as error, and A has lower rank.
    smoothing : float
        Standard deviation of the Gaussian blur of the images, in frame pixels.
    coarse : tuple of float
        With guards, for objects: blurs to begin with, in pixels of a 28-pixel frame. (): sharp from the start, as
        published.
    coarse_iterations : int
        Outer steps at each of them, at most.
    iterations : int
        Outer steps (re-linearisations) on the images as `smoothing` leaves them, at most.
    tolerance : float
        The method ends when a step lowers the objective by less than this or, with guards, by less than a 2,000th.
    inner_tolerance : float
        The inner solver ends when D + Q d − A − E is this small against D; 1e-6 as published.
    inner_iterations : int
        Steps of the inner solver, at most.
    growth : float
        Of the inner solver's penalty with every step; 1.25 as published.
    max_step : float
        With guards: no corner moves farther than this many pixels in one step.
    motion, size, align_on, kind, guards, random_state
        As for every method, see `Method`.

    Attributes
    ----------
    transforms_ : Transforms
        aligned_from_source of every image, in source pixels.
    quality_ : Quality
        Numbers and verdict of the fit.
    history_ : list of dict
        After every outer step: objective, and inner (steps of the inner solver).
    stack_from_frame_ : (n, 3, 3) array
        The poses between the pictures the method worked on.
    layout_ : Layout
        Sizes, channels, value ranges and kind of those pictures.
    """

    rank: CountOrZero = 1
    """How many singular values are free; 0 is RASL."""

    name: ClassVar[str] = "pssv"

    def _unpenalised(self) -> int:
        return self.rank
