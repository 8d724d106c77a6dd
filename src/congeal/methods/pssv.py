"""RASL with the partial sum of singular values in place of the nuclear norm.

Oh, Tai, Bazin, Kim and Kweon (2016), "Partial Sum Minimization of Singular Values in Robust PCA: Algorithm and
Applications"; on the alignment of Peng et al. (2012), see `congeal.methods.rasl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from congeal.errors import CongealError
from congeal.methods.rasl import RASL


@dataclass(kw_only=True, eq=False)
class PSSV(RASL):
    """Minimises Σ_{i>rank} σ_i(A) + λ‖E‖₁: the `rank` largest singular values cost nothing, so they do not shrink.

    Better than the nuclear norm where there are few images, and where the rank of the aligned set is known.
    """

    rank: int = 1
    """How many singular values are free; 0 is RASL."""

    name: ClassVar[str] = "pssv"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.rank < 0:
            raise CongealError(f"rank is the number of singular values that are free; {self.rank} is none")

    def _unpenalised(self) -> int:
        return self.rank
