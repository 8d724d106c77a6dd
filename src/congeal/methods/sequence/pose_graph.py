"""Pose graph optimisation: all views of a sequence adjusted jointly to the relative poses of pairs.

    minimise Σ ρ( rᵀ Λ r ),   r = log( M⁻¹ · m_b · m_a⁻¹ )

m is view_from_frame of every view, M the measured view_b_from_view_a of a pair and Λ its inverse covariance. Along a
chain of neighbours errors accumulate; pairs at larger distances bound them. Pairs that contradict the others lose their
weight (ρ is Cauchy's).

The error of a view against the origin depends on all pairs between them. It is estimated by Monte Carlo: the solutions
for random errors of all pairs, drawn from their covariances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from scipy.sparse import coo_matrix, identity
from scipy.sparse.linalg import SuperLU, splu

from congeal.execution.threads import single_torch_thread
from congeal.geometry import from_normalised, invert, matrix_from_parameters
from congeal.geometry.matrix import Size, corners, to_normalised
from congeal.geometry.motion import GENERATORS, n_parameters, parameters_from_matrix
from congeal.registration.gauss_newton import point_motion

MAX_ROUNDS = 10
"""Reweighted Gauss-Newton steps."""
CONVERGED_PX = 1e-4
"""Corner motion of the median view in the last step."""
CAUCHY_SCALE = 3.0
"""Residual of a pair, in standard deviations, at which its weight is halved."""
MAX_SERIES_ENTRY = 0.05
"""Largest entry of a matrix minus identity for which four terms of its logarithm are exact."""
ERROR_SAMPLES = 64
"""Monte Carlo samples of the errors of all pairs."""
GAUGE_RIDGE = 1e-9
"""Ridge of the Hessian relative to its mean diagonal."""

Origin = int | Literal["mean", "near"]
"""Reference of the views' errors: one of them, the mean of all, or the views that they are linked to."""


@dataclass(frozen=True)
class PoseGraph:
    """Relative poses of pairs of views.

    Attributes
    ----------
    first, second : (E,) tensors of int64
    matrices : (E, 3, 3) tensor
        second_from_first of each pair, in pixels.
    information : (E, k, k) tensor
        Inverse covariance of the parameters of a step from the right.
    frame : (height, width)
    motion : str
    """

    first: torch.Tensor
    second: torch.Tensor
    matrices: torch.Tensor
    information: torch.Tensor
    frame: Size
    motion: str

    def residual(self, views: torch.Tensor) -> torch.Tensor:
        """(E, k) residuals of the pairs for views (n, 3, 3)."""
        apart = invert(self.matrices) @ views[self.second] @ invert(views[self.first])
        return _logarithm(to_normalised(apart, self.frame), self.motion)

    def weights(self, residual: torch.Tensor) -> torch.Tensor:
        """(E,) robust weights of the pairs, given their residuals."""
        k = residual.shape[1]
        distance = torch.einsum("ek,ekl,el->e", residual, self.information, residual) / k
        return 1 / (1 + distance / CAUCHY_SCALE**2)


@dataclass(frozen=True)
class AdjustedViews:
    """Views (n, 3, 3), the error of each against the origin (n,) in pixels along an axis at a corner, and that of the
    last against the first."""

    views: torch.Tensor
    error: torch.Tensor
    ends: float


@torch.no_grad()
def adjust(graph: PoseGraph, views: torch.Tensor, origin: Origin = "near") -> AdjustedViews:
    """Adjust initial views to all pairs."""
    with single_torch_thread():  # products of small matrices
        return _adjusted(graph, views, origin)


def _adjusted(graph: PoseGraph, views: torch.Tensor, origin: Origin) -> AdjustedViews:
    found, frame = views.double(), graph.frame
    corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, graph.motion).flatten(1)
    for _ in range(MAX_ROUNDS):
        residual = graph.residual(found)
        linear = _LinearisedGraph(graph, found, graph.weights(residual))
        step = linear.solve(linear.gradient(residual))[..., 0]
        found = from_normalised(matrix_from_parameters(step), frame) @ found
        if float((step @ corner).abs().amax(1).median()) < CONVERGED_PX:
            break
    residual = graph.residual(found)
    linear = _LinearisedGraph(graph, found, graph.weights(residual))
    # Residuals beyond their standard errors mean that errors are underestimated.
    freedom = max(1, residual.numel() - step.numel())
    excess = float(torch.einsum("ek,ekl,el->", residual, linear.information, residual)) / freedom
    scale = max(1.0, excess) ** 0.5
    local = torch.linalg.pinv(linear.diagonal, hermitian=True)
    near = torch.einsum("kc,nkl,lc->n", corner, local, corner).clamp(min=0) / corner.shape[1]
    known = torch.diagonal(linear.diagonal, dim1=-2, dim2=-1).sum(-1) > 0
    samples = _ErrorSamples(linear, found)
    against = near if origin == "near" else torch.maximum(near, samples.variance(origin, corner))
    error = torch.where(known, against.sqrt() * scale, torch.nan)
    return AdjustedViews(found, error, float(samples.variance(0, corner)[-1]) ** 0.5 * scale)


class _ErrorSamples:
    """Steps of the views for random errors of all pairs."""

    def __init__(self, linear: _LinearisedGraph, views: torch.Tensor) -> None:
        self.steps = linear.solve(linear.sampled_gradients())  # (n, k, samples)
        self.carry = _adjoint(to_normalised(views, linear.graph.frame), self.steps.shape[1])  # (n, k, k)

    def variance(self, origin: int | str, corner: torch.Tensor) -> torch.Tensor:
        """(n,) variance of a corner of each view along an axis, in pixels, against one view or the mean of all."""
        shared = torch.linalg.solve(self.carry, self.steps)  # the same steps in the common frame
        still = shared.mean(0) if isinstance(origin, str) else shared[origin]
        apart = self.steps - self.carry @ still
        return torch.einsum("kc,nks->ncs", corner, apart).square().mean((1, 2))


class _LinearisedGraph:
    """The linearised residuals r + Ad(m_a·m_b⁻¹)·ε_b − ε_a, for steps m ← exp(ε)·m, as a sparse Hessian.

    With M⁻¹ in place of m_a·m_b⁻¹ the linearisation would be as accurate, but pairs that disagree would determine the
    pose of all views together by their disagreement, and it would drift.
    """

    def __init__(self, graph: PoseGraph, views: torch.Tensor, weights: torch.Tensor) -> None:
        self.graph, self.k = graph, graph.information.shape[-1]
        self.n = int(torch.maximum(graph.first, graph.second).max()) + 1
        apart = views[graph.first] @ invert(views[graph.second])
        self.adjoint = _adjoint(to_normalised(apart, graph.frame), self.k)  # (E, k, k)
        self.information = graph.information * weights[:, None, None]
        other = self.information @ self.adjoint
        own = self.adjoint.transpose(1, 2) @ other
        self.diagonal = torch.zeros(self.n, self.k, self.k, dtype=torch.float64)
        self.diagonal.index_add_(0, graph.first, self.information)
        self.diagonal.index_add_(0, graph.second, own)
        nodes = torch.arange(self.n)
        rows = torch.cat([nodes, graph.first, graph.second])
        columns = torch.cat([nodes, graph.second, graph.first])
        self._factors = self._factorise(rows, columns, torch.cat([self.diagonal, -other, -other.transpose(1, 2)]))

    def _factorise(self, rows: torch.Tensor, columns: torch.Tensor, blocks: torch.Tensor) -> SuperLU:
        """LU factors of the Hessian of blocks (k, k). No pair determines the pose of all views together: a relative
        ridge keeps it where it is."""
        inner = torch.arange(self.k)
        row = (rows[:, None, None] * self.k + inner[:, None]).expand_as(blocks).flatten().numpy()
        column = (columns[:, None, None] * self.k + inner).expand_as(blocks).flatten().numpy()
        size = self.n * self.k
        hessian = coo_matrix((blocks.flatten().numpy(), (row, column)), shape=(size, size)).tocsc()
        return splu(hessian + identity(size, format="csc") * (GAUGE_RIDGE * hessian.diagonal().mean()))

    def gradient(self, residual: torch.Tensor) -> torch.Tensor:
        """(n, k, 1) the negative gradient of each view."""
        return -self._gather(self.information @ residual[..., None])

    def sampled_gradients(self) -> torch.Tensor:
        """(n, k, samples) negative gradients of pairs with random errors of their own covariance; a fixed seed."""
        value, vector = torch.linalg.eigh(self.information)
        root = vector * value.clamp(min=0).sqrt()[:, None]  # (E, k, k)
        noise = torch.randn(
            *root.shape[:2], ERROR_SAMPLES, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        return self._gather(root @ noise)

    def _gather(self, edges: torch.Tensor) -> torch.Tensor:
        nodes = edges.new_zeros(self.n, *edges.shape[1:])
        nodes.index_add_(0, self.graph.first, -edges)
        nodes.index_add_(0, self.graph.second, self.adjoint.transpose(1, 2) @ edges)
        return nodes

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """(n, k, S) steps for several right sides (n, k, S)."""
        return torch.from_numpy(self._factors.solve(right.reshape(self.n * self.k, -1).numpy())).view_as(right)


def _logarithm(matrices: torch.Tensor, motion: str) -> torch.Tensor:
    """Parameters (E, k) of normalised matrices (E, 3, 3), most of which are near the identity."""
    k = n_parameters(motion)
    scaled = matrices / torch.linalg.det(matrices).abs().pow(1 / 3)[:, None, None]
    x = scaled - torch.eye(3, dtype=matrices.dtype)
    square = x @ x
    log = x - square / 2 + square @ x / 3 - square @ square / 4
    result = _coordinates(log, k)
    far = x.abs().amax((1, 2)) > MAX_SERIES_ENTRY
    if bool(far.any()):
        result[far] = parameters_from_matrix(matrices[far], motion)
    return result


def _adjoint(matrices: torch.Tensor, k: int) -> torch.Tensor:
    """(E, k, k) adjoint of matrices: small steps before a matrix as steps after it."""
    moved = matrices[:, None] @ GENERATORS[:k] @ torch.linalg.inv(matrices)[:, None]  # (E, k, 3, 3)
    return _coordinates(moved, k).transpose(1, 2)


def _coordinates(matrices: torch.Tensor, k: int) -> torch.Tensor:
    """(..., k) coordinates of Lie algebra elements (..., 3, 3) in the basis of generators."""
    centred = matrices - matrices[..., 2:, 2:] * torch.eye(3, dtype=matrices.dtype)
    basis = GENERATORS.reshape(8, 9)
    return (centred.flatten(-2) @ basis.T / basis.square().sum(1))[..., :k]
