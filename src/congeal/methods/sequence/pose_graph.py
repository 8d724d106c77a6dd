"""Pose graph optimisation: all views of a sequence adjusted jointly to the relative poses of pairs.

    minimise Σ ρ( rᵀ Λ r ),   r = log( M⁻¹ · m_b · m_a⁻¹ )

m is view_from_frame of every view, M the measured view_b_from_view_a of a pair and Λ its inverse covariance. Along a
chain of neighbours errors accumulate; pairs at larger distances bound them. Pairs that contradict the others lose their
weight (ρ is Cauchy's).

The error of a view against the origin depends on all pairs between them. It is estimated by Monte Carlo: the solutions
for random errors of all pairs, drawn from their covariances.

A trajectory is smoothed by local linear regression of the poses around each view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from scipy.sparse import coo_matrix, identity
from scipy.sparse.linalg import splu

from congeal.execution.threads import single_torch_thread
from congeal.geometry import from_normalised, invert, matrix_from_parameters
from congeal.geometry.matrix import Size, corners, to_normalised
from congeal.geometry.motion import GENERATORS, n_parameters, parameters_from_matrix
from congeal.methods.sequence.pairwise_registration import CONVERGED_PX
from congeal.registration.gauss_newton import point_motion

CAUCHY_SCALE = 3.0
"""Residual of a pair, in standard deviations, at which its weight is halved: a usual value
(chosen by judgement)."""
ERROR_SAMPLES = 256
"""Monte Carlo samples of the errors of all pairs: they tell a standard error to 1/√512 = 4 %."""
KERNEL_DEVIATION = math.sqrt(math.log(2) / 2) / math.pi
"""Standard deviation of the smoothing kernel, in periods: a Gaussian of it halves an oscillation of that period."""

Origin = int | Literal["mean", "near"]
"""Reference of the views' errors: one of them, the mean of all, or the views that they are linked to."""


@dataclass(frozen=True)
class PoseGraph:
    """Relative poses of pairs of views: matrices (E, 3, 3) second_from_first, in pixels, of views first and second
    (E,), and information (E, k, k), the inverse covariance of the parameters of a step from the right."""

    first: torch.Tensor
    second: torch.Tensor
    matrices: torch.Tensor
    information: torch.Tensor
    frame: Size
    motion: str

    def residual(self, views: torch.Tensor) -> torch.Tensor:
        """(E, k) residuals of the pairs for views (n, 3, 3)."""
        apart = invert(self.matrices) @ views[self.second] @ invert(views[self.first])
        return parameters_from_matrix(to_normalised(apart, self.frame), self.motion)

    def weights(self, residual: torch.Tensor) -> torch.Tensor:
        """(E,) robust weights of the pairs, given their residuals."""
        k = residual.shape[1]
        distance = torch.einsum("ek,ekl,el->e", residual, self.information, residual) / k
        return 1 / (1 + distance / CAUCHY_SCALE**2)


class AdjustedViews(NamedTuple):
    """Views (n, 3, 3), the error of each against the origin (n,) in pixels along an axis at a corner, and that of the
    last against the first."""

    views: torch.Tensor
    error: torch.Tensor
    ends: float


@torch.no_grad()
def adjust(graph: PoseGraph, views: torch.Tensor, origin: Origin = "near") -> AdjustedViews:
    """Adjust initial views to all pairs."""
    found, frame = views.double(), graph.frame
    corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, graph.motion).flatten(1)
    with single_torch_thread():  # products of small matrices
        for _ in range(10):  # fewer, unless pairs contradict each other
            linear = _LinearisedGraph(graph, found)
            step = linear.solve(linear.gradient)[..., 0]
            found = from_normalised(matrix_from_parameters(step), frame) @ found
            if float((step @ corner).abs().amax(1).median()) < CONVERGED_PX:
                break
        linear = _LinearisedGraph(graph, found)
        # Residuals beyond their standard errors mean that errors are underestimated.
        squared = torch.einsum("ek,ekl,el->", linear.residual, linear.information, linear.residual)
        scale = max(1.0, float(squared) / max(1, linear.residual.numel() - step.numel())) ** 0.5
        local = torch.linalg.pinv(linear.diagonal, hermitian=True)
        near = torch.einsum("kc,nkl,lc->n", corner, local, corner).clamp(min=0) / corner.shape[1]
        known = torch.diagonal(linear.diagonal, dim1=-2, dim2=-1).sum(-1) > 0
        sampled = linear.solve(linear.sampled_gradients())  # (n, k, samples)
        carry = _adjoint(to_normalised(found, frame), sampled.shape[1])  # (n, k, k)
        shared = torch.linalg.solve(carry, sampled)  # the same steps in the common frame

        def variance(still: torch.Tensor) -> torch.Tensor:
            """(n,) of a corner of each view along an axis, in pixels, against a view that moves by `still`."""
            return torch.einsum("kc,nks->ncs", corner, sampled - carry @ still).square().mean((1, 2))

        against = near
        if origin != "near":
            against = torch.maximum(near, variance(shared.mean(0) if origin == "mean" else shared[origin]))
        error = torch.where(known, against.sqrt() * scale, torch.nan)
        return AdjustedViews(found, error, float(variance(shared[0])[-1]) ** 0.5 * scale)


class _LinearisedGraph:
    """The linearised residuals r + Ad(m_a·m_b⁻¹)·ε_b − ε_a, for steps m ← exp(ε)·m, as a sparse Hessian.

    With M⁻¹ in place of m_a·m_b⁻¹ the linearisation would be as accurate, but pairs that disagree would determine the
    pose of all views together by their disagreement, and it would drift.
    """

    def __init__(self, graph: PoseGraph, views: torch.Tensor) -> None:
        self.graph, self.residual, self.n = graph, graph.residual(views), len(views)
        self.k = k = self.residual.shape[1]
        apart = views[graph.first] @ invert(views[graph.second])
        self.adjoint = _adjoint(to_normalised(apart, graph.frame), k)  # (E, k, k)
        self.information = graph.information * graph.weights(self.residual)[:, None, None]
        other = self.information @ self.adjoint
        self.diagonal = torch.zeros(self.n, k, k, dtype=torch.float64)
        self.diagonal.index_add_(0, graph.first, self.information)
        self.diagonal.index_add_(0, graph.second, self.adjoint.transpose(1, 2) @ other)
        nodes, inner = torch.arange(self.n), torch.arange(k)
        blocks = torch.cat([self.diagonal, -other, -other.transpose(1, 2)])
        rows = torch.cat([nodes, graph.first, graph.second])[:, None, None] * k + inner[:, None]
        columns = torch.cat([nodes, graph.second, graph.first])[:, None, None] * k + inner
        places = tuple(one.expand_as(blocks).flatten().numpy() for one in (rows, columns))
        hessian = coo_matrix((blocks.flatten().numpy(), places)).tocsc()
        # No pair determines the pose of all views together: a small ridge keeps it where it is.
        ridge = 1e-9 * hessian.diagonal().mean()
        self._factors = splu(hessian + identity(hessian.shape[0], format="csc") * ridge)

    @property
    def gradient(self) -> torch.Tensor:
        """(n, k, 1) the negative gradient of each view."""
        return -self._gather(self.information @ self.residual[..., None])

    def sampled_gradients(self) -> torch.Tensor:
        """(n, k, samples) negative gradients of pairs with random errors of their own covariance; a fixed seed."""
        value, vector = torch.linalg.eigh(self.information)
        root = vector * value.clamp(min=0).sqrt()[:, None]  # (E, k, k)
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(*root.shape[:2], ERROR_SAMPLES, dtype=torch.float64, generator=generator)
        return self._gather(root @ noise)

    def _gather(self, edges: torch.Tensor) -> torch.Tensor:
        nodes = edges.new_zeros(self.n, *edges.shape[1:])
        nodes.index_add_(0, self.graph.first, -edges)
        nodes.index_add_(0, self.graph.second, self.adjoint.transpose(1, 2) @ edges)
        return nodes

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """(n, k, S) steps for several right sides (n, k, S)."""
        return torch.from_numpy(self._factors.solve(right.reshape(self.n * self.k, -1).numpy())).view_as(right)


def _adjoint(matrices: torch.Tensor, k: int) -> torch.Tensor:
    """(E, k, k) adjoint of matrices: small steps before a matrix as steps after it."""
    moved = matrices[:, None] @ GENERATORS[:k] @ torch.linalg.inv(matrices)[:, None]  # (E, k, 3, 3)
    centred = moved - moved[..., 2:, 2:] * torch.eye(3, dtype=moved.dtype)
    basis = GENERATORS[:k].flatten(1)
    return (centred.flatten(-2) @ basis.T / basis.square().sum(1)).transpose(1, 2)


@torch.no_grad()
def smooth_trajectory(views: torch.Tensor, period: float, motion: str, frame: Size) -> torch.Tensor:
    """Poses (n, 3, 3) view_from_output of a stabilised sequence, from view_from_frame.

    Motion with periods below `period` views is removed, slower motion is kept. A line is fitted around each view, not a
    mean, so that a constant drift is preserved up to the ends.
    """
    n, deviation = len(views), KERNEL_DEVIATION * period
    reach = min(n - 1, max(1, math.ceil(3 * deviation)))
    frame_from_view = invert(views.double())
    k = n_parameters(motion)
    moments = torch.zeros(3, n, 1, dtype=torch.float64)  # of the weights: of order 0, 1 and 2
    sums, tilted = torch.zeros(2, n, k, dtype=torch.float64)
    for distance in range(-reach, reach + 1):
        rows = torch.arange(max(0, -distance), min(n, n - distance))
        weight = math.exp(-0.5 * (distance / deviation) ** 2)
        step = to_normalised(views[rows].double() @ frame_from_view[rows + distance], frame)  # view_from_that_view
        where = parameters_from_matrix(step, motion)
        moments[:, rows] += weight * torch.tensor([1.0, distance, distance**2])[:, None, None].double()
        sums[rows] += weight * where
        tilted[rows] += weight * distance * where
    total, first, second = moments
    level = (second * sums - first * tilted) / (total * second - first.square())
    return from_normalised(matrix_from_parameters(level), frame)
