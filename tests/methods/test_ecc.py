"""ECC to the running mean: known warps come back, failures stay local, the set keeps its ink."""

from __future__ import annotations

import numpy as np
import pytest
from known_warps import errors, warped_digit

from congeal import CongealError

cv2 = pytest.importorskip("cv2")

from congeal.methods.ecc import ECC  # noqa: E402


@pytest.mark.parametrize("motion", ["translation", "rigid", "affine", "homography"])
def test_known_warps_come_back(motion: str) -> None:
    images, truth = warped_digit(motion)
    before, after = errors(ECC(motion=motion).fit(images), truth)
    assert before > 1
    assert after < 0.5


def test_an_image_opencv_gives_up_on_keeps_its_transform() -> None:
    images, _ = warped_digit("rigid")
    noise = np.random.default_rng(0).integers(0, 2, (28, 28)) * 255
    images[7], images[9] = noise, 0
    model = ECC(motion="rigid", guards=False).fit(images)
    assert model.history_[-1]["failures"] >= 1
    assert np.allclose(model.stack_from_frame_[9], np.eye(3))
    assert np.isfinite(model.transforms_.matrices).all()


def test_without_guards_nothing_holds_the_mean_transform() -> None:
    images, _ = warped_digit("affine")
    means = [ECC(motion="affine", guards=g).fit(images).stack_from_frame_.mean(0) for g in (True, False)]
    assert np.allclose(means[0], np.eye(3), atol=0.05)
    assert not np.allclose(means[1], means[0], atol=1e-6)


def test_rigid_keeps_the_scale_of_a_start_that_zooms() -> None:
    """OpenCV's own rigid matrices would drop it."""
    images, truth = warped_digit("rigid")
    zoom = np.array([[0.8, 0, 2.7], [0, 0.8, 2.7], [0, 0, 1]])
    model = ECC(motion="rigid", guards=False).fit(images, init=np.broadcast_to(zoom, truth.shape))
    scale = np.sqrt(np.linalg.det(model.transforms_.matrices[:, :2, :2]))
    assert np.allclose(scale, 0.8, atol=1e-3)
    assert errors(model, truth)[1] < 0.5


def test_similarity_is_not_one_of_opencvs_motions() -> None:
    with pytest.raises(CongealError, match="no motion 'similarity'"):
        ECC(motion="similarity").fit(warped_digit()[0])


@pytest.mark.parametrize("smoothing", [(), (4,), (0,)])
def test_smoothing_must_be_odd(smoothing: tuple[int, ...]) -> None:
    with pytest.raises(CongealError, match="odd"):
        ECC(smoothing=smoothing).fit(warped_digit()[0])
