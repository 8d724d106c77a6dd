"""RASL against the PyPI package `rasl` 0.1.0, which serves as an oracle, and on its own."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import torch

from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.geometry import from_normalised, matrix_from_parameters
from congeal.geometry.matrix import Size, invert
from congeal.images import Stack, prepare
from congeal.methods.measure import measure
from congeal.methods.pssv import PSSV
from congeal.methods.rasl import RASL
from congeal.metrics import corner_error
from congeal.opening import open_images
from congeal.solvers.lowrank import Decomposition, Linear, Spectrum, decompose, linearise

PAD = 8


def digits(name: str, count: int) -> Stack:
    return prepare(open_named(name).limit(count), size=28)


def package_rasl(stack: Stack, **options: Any) -> tuple[np.ndarray, int]:
    """(stack_from_frame, outer iterations) of the package, rigid motion from the identity.

    Its frame must lie inside the image, so images get a border of zeros and the frame is the original 28×28.
    """
    package = pytest.importorskip("rasl")
    images = stack.images(np.arange(len(stack)))[:, 0].double().numpy()
    padded = list(np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD))))
    start = [package.EuclideanTransform().inset(image.shape, PAD) for image in padded]
    with contextlib.redirect_stdout(io.StringIO()):
        _, _, found, iterations = package.rasl(padded, start, **options)
    matrices = np.stack([np.asarray(transform.params) for transform in found])
    matrices[:, :2, 2] -= PAD
    return matrices, iterations


class LikeThePackage(RASL):
    """RASL with the two choices in which the package differs and which steer its path to another optimum.

    It starts the multipliers at D / max(‖D‖₂, largest column sum / λ), where the publication has the largest entry; and
    it adds steps to angle and shift about the frame's top left corner, where this library composes about the centre.
    """

    def _decompose(self, line: Linear, weight: float, spectrum: Spectrum, sharp: bool) -> Decomposition:
        scale = max(spectrum.largest(line.data), float(line.data.abs().sum(0).max()) / weight)
        return decompose(line, weight, spectrum, 1e-6, self.inner_iterations, scale)

    def _move(self, found: torch.Tensor, line: Linear, step: torch.Tensor, size: Size) -> torch.Tensor:
        delta = (line.to_parameters @ step[..., None])[..., 0]
        small = 1e-7
        change = (from_normalised(matrix_from_parameters(delta * small), size) - torch.eye(3).double()) / small
        angle = torch.atan2(found[:, 1, 0], found[:, 0, 0]) + change[:, 1, 0]
        moved = found + found @ change
        moved[:, 0, 0] = moved[:, 1, 1] = angle.cos()
        moved[:, 1, 0], moved[:, 0, 1] = angle.sin(), -angle.sin()
        return moved


@pytest.mark.parametrize("name", ["digits:2", "digits:7"])  # some of the sevens touch the border of their image
def test_equals_the_package(name: str) -> None:
    stack = digits(name, 30)
    expected, iterations = package_rasl(stack)
    method = LikeThePackage(motion="rigid", size=28, guards=False, smoothing=0.0, iterations=100).fit(stack)
    assert len(method.history_) == iterations
    assert method.quality_.apsnr_after == pytest.approx(measure(stack, expected).quality.apsnr_after, abs=0.02)


def test_own_choices_reach_as_low_a_cost() -> None:
    # Composed steps and the published multipliers take another path through a flat cost. Over all ten digits, 30 and 50
    # images each, it ended within 0.05 of the package's cost, lower or higher, and −0.07 to +0.04 dB from its APSNR.
    stack = digits("digits:8", 30)

    def cost(found: np.ndarray) -> float:
        line = linearise(stack, torch.as_tensor(found), "rigid", 0.0, "object")
        return decompose(line, 1 / 28, Spectrum((30, 784))).objective

    method = RASL(motion="rigid", size=28, guards=False, smoothing=0.0, iterations=100).fit(stack)
    package, start = cost(package_rasl(stack)[0]), cost(stack.start.copy())
    assert start - cost(method.stack_from_frame_) > 0.9 * (start - package)


def test_one_linearisation_equals_the_package() -> None:
    stack = digits("digits:3", 40)
    expected, _ = package_rasl(stack, maxiter=1)
    method = LikeThePackage(motion="rigid", size=28, guards=False, smoothing=0.0, iterations=1).fit(stack)
    np.testing.assert_allclose(method.stack_from_frame_, expected, atol=2e-3)


def warped_copies(motion: str, count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """One digit under known warps of at most 3 px and 5°, and aligned_from_source that undoes them."""
    rng = np.random.default_rng(5)
    parameters = np.zeros((count, 4))
    parameters[:, :2] = rng.uniform(-2, 2, (count, 2)) / 14
    parameters[:, 2] = np.radians(rng.uniform(-5, 5, count))
    if motion != "rigid":
        parameters[:, 3] = rng.uniform(-0.05, 0.05, count)
    truth = from_normalised(matrix_from_parameters(torch.as_tensor(parameters)), (28, 28))
    image = digits("digits:3", 1).images([0])
    from congeal.geometry import warp

    copies = warp(image.expand(count, -1, -1, -1), invert(truth).float(), mode="bicubic")[:, 0].clamp(0, 1)
    return (copies.numpy() * 255).round().astype(np.uint8), invert(truth).numpy()


@pytest.mark.parametrize("motion", ["rigid", "similarity", "affine"])
@pytest.mark.parametrize("method", [RASL, PSSV])
def test_recovers_known_warps(method: type[RASL], motion: str) -> None:
    images, truth = warped_copies(motion)
    found = method(motion=motion, size=28).fit(images).transforms_.matrices
    assert corner_error(found, truth, (28, 28)).mean() < 0.5


def test_pssv_without_free_values_is_rasl() -> None:
    stack = digits("digits:4", 30)
    rasl = RASL(size=28, iterations=4).fit(stack)
    pssv = PSSV(size=28, iterations=4, rank=0).fit(stack)
    np.testing.assert_array_equal(rasl.stack_from_frame_, pssv.stack_from_frame_)
    other = PSSV(size=28, iterations=4, rank=1).fit(stack)
    assert np.abs(rasl.stack_from_frame_ - other.stack_from_frame_).max() > 1e-3
    with pytest.raises(CongealError, match="rank"):
        PSSV(rank=-1).fit(stack)


def test_guards_hold_the_ink() -> None:
    stack = digits("digits:1", 40)
    held = RASL(motion="affine", size=28, iterations=12).fit(stack)
    assert 0.9 < held.quality_.energy_ratio < 1.1
    published = RASL(motion="affine", size=28, iterations=12, guards=False).fit(stack)
    assert np.isfinite(published.stack_from_frame_).all()
    assert published.quality_.energy_ratio < 0.8


def test_rigid_stays_rigid() -> None:
    method = RASL(motion="rigid", size=28, iterations=6).fit(digits("digits:1", 40))
    determinant = np.linalg.det(method.stack_from_frame_[:, :2, :2])
    np.testing.assert_allclose(determinant, 1.0, atol=1e-9)


def test_blank_image_stays_where_it_is() -> None:
    images = np.concatenate([open_named("digits:3").batch(np.arange(12))[..., 0], np.zeros((1, 28, 28), np.uint8)])
    method = RASL(motion="rigid", size=28, iterations=3).fit(images)
    assert np.isfinite(method.stack_from_frame_).all()
    assert method.transforms_.status[-1] == "blank"


def test_colour_and_a_frame_smaller_than_the_images() -> None:
    digit = open_named("digits:3").batch(np.arange(12))[..., 0]
    images = np.stack([np.pad(digit, ((0, 0), (6, 6), (6, 6)))] * 3, -1)
    init = np.tile(np.array([[1, 0, -6.0], [0, 1, -6], [0, 0, 1]]), (12, 1, 1))
    stack = prepare(open_images(images), size=40, init=init, init_size=(28, 28))
    assert stack.size != stack.frame
    method = RASL(motion="rigid", size=40, iterations=3).fit(stack)
    grey = RASL(motion="rigid", size=28, iterations=3).fit(digit)
    assert method.quality_.apsnr_after == pytest.approx(grey.quality_.apsnr_after, abs=0.05)


class Kept:
    """A checkpoint in memory."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def save(self, state: dict[str, Any]) -> None:
        self.states.append({**state, "history": list(state["history"])})

    def load(self) -> dict[str, Any] | None:
        return self.states[-1] if self.states else None


def test_resume_equals_uninterrupted() -> None:
    stack, kept = digits("digits:5", 30), Kept()
    whole = RASL(size=28, iterations=5).fit(stack, checkpoint=kept, save_every=0.0)
    for stop in range(len(kept.states)):
        part = Kept()
        part.states = [kept.states[stop]]
        resumed = RASL(size=28, iterations=5).fit(stack, checkpoint=part, save_every=0.0)
        np.testing.assert_array_equal(whole.stack_from_frame_, resumed.stack_from_frame_)
        assert whole.history_ == resumed.history_


def test_only_objects_begin_blurred() -> None:
    """Blurred photographs would be aligned by their light and background."""
    assert RASL()._blurs((28, 28), "object") == [2.0, 1.0, 0.4]
    assert RASL()._blurs((28, 28), "photo") == [0.4]
    assert RASL(guards=False)._blurs((28, 28), "object") == [0.4]
