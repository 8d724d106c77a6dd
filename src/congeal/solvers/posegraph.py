"""All views of a sequence at once, from where pairs of them lie in each other: the joint adjustment that closes chains.

    minimise Σ ρ( rᵀ Λ r ),   r = log( M⁻¹ · m_b · m_a⁻¹ )

m is view_from_frame of every view, M the measured view_b_from_view_a of a pair and Λ its inverse covariance. In a chain
of neighbours alone errors add up; pairs farther apart that see the same thing hold them together. Pairs that contradict
the others lose their weight (ρ is Cauchy's).

How well a view is known against the one that the result is aligned to depends on all pairs between them. It is found by
drawing: what the answer would be if every pair erred a little, at random, by its own error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from congeal.geometry import from_normalised, invert, matrix_from_parameters
from congeal.geometry.matrix import Size, corners, to_normalised
from congeal.geometry.motion import GENERATORS, n_parameters, parameters_from_matrix
from congeal.solvers.gaussnewton import point_motion
from congeal.solvers.threads import one_thread

_ROUNDS = 10  # at most, of steps with renewed weights
_STILL = 1e-4  # pixels that the median view moves by in the last one
_FAR = 3.0  # standard deviations beyond which a pair contradicts the others
_NEAR = 0.05  # of an entry: so near to the identity a few terms of the logarithm are all of it
_SOLVED = 1e-3  # of what there was to solve; the next round goes on from there
_MOST = 2000  # steps of the linear solver
_DRAWS = 64  # of errors of all pairs
_DRAWN = 1e-3  # of what there was to solve, where only the size of an error is asked for

Origin = int | Literal["mean", "near"]
"""What views are known against: one of them, the mean of all, or those that they are linked to."""


@dataclass(frozen=True)
class Graph:
    """Pairs of views that see the same thing.

    Attributes
    ----------
    first, second : (E,) tensors of int64
    matrices : (E, 3, 3) tensor
        Of each pair second_from_first, in pixels.
    information : (E, k, k) tensor
        Of the parameters of a step from the right.
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
        """(E, k) by how much each pair disagrees with views (n, 3, 3)."""
        apart = invert(self.matrices) @ views[self.second] @ invert(views[self.first])
        return _logarithm(to_normalised(apart, self.frame), self.motion)

    def weights(self, residual: torch.Tensor) -> torch.Tensor:
        """(E,) how much each pair counts, given how far it is off."""
        k = residual.shape[1]
        distance = torch.einsum("ek,ekl,el->e", residual, self.information, residual) / k
        return 1 / (1 + distance / _FAR**2)


@dataclass(frozen=True)
class Adjusted:
    """Views (n, 3, 3), the error of each against the origin (n,) in pixels along an axis at a corner, and that of the
    last against the first."""

    views: torch.Tensor
    error: torch.Tensor
    ends: float


@torch.no_grad()
def adjust(graph: Graph, views: torch.Tensor, origin: Origin = "near") -> Adjusted:
    """The views that agree best with all pairs, from views that agree roughly."""
    with one_thread():  # products of small matrices: a second thread would only wait
        return _adjusted(graph, views, origin)


def _adjusted(graph: Graph, views: torch.Tensor, origin: Origin) -> Adjusted:
    found, frame = views.double(), graph.frame
    linear = _Linear(graph)
    corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, graph.motion).flatten(1)
    for _ in range(_ROUNDS):
        residual = graph.residual(found)
        linear.at(found, graph.weights(residual))
        step = linear.solve(linear.pull(residual)[..., None], _SOLVED)[..., 0]
        found = from_normalised(matrix_from_parameters(step), frame) @ found
        if float((step @ corner).abs().amax(1).median()) < _STILL:
            break
    residual = graph.residual(found)
    linear.at(found, graph.weights(residual))
    # Pairs that disagree by more than they should know say that errors are larger than they look.
    loose = max(1, residual.numel() - step.numel())
    excess = float(torch.einsum("ek,ekl,el->", residual, linear.information, residual)) / loose
    scale = max(1.0, excess) ** 0.5
    local = torch.linalg.pinv(linear.diagonal, hermitian=True)
    near = torch.einsum("kc,nkl,lc->n", corner, local, corner).clamp(min=0) / corner.shape[1]
    known = torch.diagonal(linear.diagonal, dim1=-2, dim2=-1).sum(-1) > 0
    drawn = _Drawn(linear, found)
    against = near if origin == "near" else torch.maximum(near, drawn.variance(origin, corner))
    error = torch.where(known, against.sqrt() * scale, torch.nan)
    return Adjusted(found, error, float(drawn.variance(0, corner)[-1]) ** 0.5 * scale)


class _Drawn:
    """How the views would move if every pair erred by its own error: `_DRAWS` times."""

    def __init__(self, linear: _Linear, views: torch.Tensor) -> None:
        self.steps = linear.solve(linear.drawn(), _DRAWN)  # (n, k, draws)
        self.carry = _adjoint(to_normalised(views, linear.graph.frame), self.steps.shape[1])  # (n, k, k)

    def variance(self, origin: int | str, corner: torch.Tensor) -> torch.Tensor:
        """(n,) of a corner of each view along an axis, in pixels, against one view or the mean of all."""
        shared = torch.linalg.solve(self.carry, self.steps)  # the same steps, made in the frame of all
        still = shared.mean(0) if isinstance(origin, str) else shared[origin]
        apart = self.steps - self.carry @ still
        return torch.einsum("kc,nks->ncs", corner, apart).square().mean((1, 2))


class _Linear:
    """The linearised problem: r + Ad(m_a·m_b⁻¹)·ε_b − ε_a, for steps m ← exp(ε)·m.

    With M⁻¹ in place of m_a·m_b⁻¹ it would be as right, but pairs that disagree would then hold the pose of all views
    together by what they disagree by: next to nothing, so that it would wander.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, k = graph, graph.information.shape[-1]
        self.n = int(torch.maximum(graph.first, graph.second).max()) + 1
        self.information, self.k = graph.information, k
        self.diagonal = self.adjoint = torch.empty(0)

    def at(self, views: torch.Tensor, weights: torch.Tensor) -> None:
        """Take over where the views are, and what each pair counts."""
        graph, k = self.graph, self.k
        apart = views[graph.first] @ invert(views[graph.second])
        self.adjoint = _adjoint(to_normalised(apart, graph.frame), k)  # (E, k, k)
        self.information = self.graph.information * weights[:, None, None]
        self.diagonal = torch.zeros(self.n, k, k, dtype=torch.float64)
        self.diagonal.index_add_(0, self.graph.first, self.information)
        self.diagonal.index_add_(0, self.graph.second, self.adjoint.transpose(1, 2) @ self.information @ self.adjoint)
        self._inverse = torch.linalg.pinv(self.diagonal, hermitian=True)

    def pull(self, residual: torch.Tensor) -> torch.Tensor:
        """(n, k) which way the pairs pull each view."""
        return -self._gathered(self.information @ residual[..., None])[..., 0]

    def drawn(self) -> torch.Tensor:
        """(n, k, draws) the pull of pairs that err at random, each by its own error; always the same draws."""
        value, vector = torch.linalg.eigh(self.information)
        root = vector * value.clamp(min=0).sqrt()[:, None]  # (E, k, k)
        random = torch.Generator().manual_seed(0)
        noise = torch.randn(*root.shape[:2], _DRAWS, dtype=torch.float64, generator=random)
        return self._gathered(root @ noise)

    def _gathered(self, edges: torch.Tensor) -> torch.Tensor:
        nodes = edges.new_zeros(self.n, *edges.shape[1:])
        nodes.index_add_(0, self.graph.first, -edges)
        nodes.index_add_(0, self.graph.second, self.adjoint.transpose(1, 2) @ edges)
        return nodes

    def _times(self, nodes: torch.Tensor) -> torch.Tensor:
        apart = self.adjoint @ nodes[self.graph.second] - nodes[self.graph.first]
        return self._gathered(self.information @ apart)

    def solve(self, right: torch.Tensor, precision: float) -> torch.Tensor:
        """Conjugate gradients for several right sides (n, k, S); what no pair can tell, the pose of all views
        together, stays where it is."""

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a * b).sum((0, 1))

        answer, left = torch.zeros_like(right), right.clone()
        towards = guess = self._inverse @ left
        before = begun = product(left, guess)
        for _ in range(_MOST):
            going = before > precision**2 * begun
            if not bool(going.any()):
                break
            pushed = self._times(towards)
            length = torch.where(going, before / product(towards, pushed).clamp(min=1e-300), 0.0)
            answer, left = answer + length * towards, left - length * pushed
            guess = self._inverse @ left
            now = product(left, guess)
            towards = guess + torch.where(going, now / before, 0.0) * towards
            before = torch.where(going, now, before)
        return answer


def _logarithm(matrices: torch.Tensor, motion: str) -> torch.Tensor:
    """Parameters (E, k) of normalised matrices (E, 3, 3), most of which are near the identity."""
    k = n_parameters(motion)
    scaled = matrices / torch.linalg.det(matrices).abs().pow(1 / 3)[:, None, None]
    x = scaled - torch.eye(3, dtype=matrices.dtype)
    square = x @ x
    log = x - square / 2 + square @ x / 3 - square @ square / 4
    result = _coordinates(log, k)
    far = x.abs().amax((1, 2)) > _NEAR
    if bool(far.any()):
        result[far] = parameters_from_matrix(matrices[far], motion)
    return result


def _adjoint(matrices: torch.Tensor, k: int) -> torch.Tensor:
    """(E, k, k): small steps before a matrix as the same steps after it."""
    moved = matrices[:, None] @ GENERATORS[:k] @ torch.linalg.inv(matrices)[:, None]  # (E, k, 3, 3)
    return _coordinates(moved, k).transpose(1, 2)


def _coordinates(matrices: torch.Tensor, k: int) -> torch.Tensor:
    """(..., k) of elements of the algebra (..., 3, 3) in terms of its generators."""
    centred = matrices - matrices[..., 2:, 2:] * torch.eye(3, dtype=matrices.dtype)
    basis = GENERATORS.reshape(8, 9)
    return (centred.flatten(-2) @ basis.T / basis.square().sum(1))[..., :k]
