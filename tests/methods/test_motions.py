"""Which motion is chosen: the simplest that suffices, or the one asked for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from known_warps import align_new, photograph_copies, pixels

import congeal
from congeal import JointAlignment
from congeal.geometry import MOTIONS, from_normalised, matrix_from_parameters, warp


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_true_motion_is_chosen_and_said(motion: str) -> None:
    images, _ = photograph_copies(motion)
    model = JointAlignment(size=32).fit(images)
    assert model.motion_ == motion
    sentence = model.decisions_["motion"]["sentence"]
    beside = (*MOTIONS[1:], "affine")[MOTIONS.index(motion)]  # the next larger one, or the last but one
    assert sentence.startswith(f"{motion} ")
    assert "the other images explain" in sentence
    assert f"({beside}: " in sentence


def test_one_frame_that_turned_is_reason_enough() -> None:
    """Four of five frames gain nothing by turning: compared image by image, that looks like chance."""
    images, _ = photograph_copies("translation", n=5)
    turned = matrix_from_parameters(torch.tensor([[0.0, 0.0, math.radians(2)]]))
    first = torch.from_numpy(images[:1].astype(np.float32)).view(1, 1, *images.shape[1:3])
    images[0] = warp(first, from_normalised(turned, images.shape[1:3])).round().numpy().reshape(images.shape[1:])
    model = JointAlignment(size=32).fit(images)
    assert model.motion_ == "rigid"
    angles = np.degrees(np.arctan2(model.transforms_.matrices[:, 1, 0], model.transforms_.matrices[:, 0, 0]))
    assert abs(angles[0] - angles[1:].mean()) == pytest.approx(2, abs=0.2)


def test_digits_keep_their_homographies() -> None:
    model = JointAlignment(restarts=2).fit(pixels("3", 0, 40))
    assert model.motion_ == "homography"
    explained_variance = model.decisions_["motion"]["explained_variance"]
    assert explained_variance["homography"] > explained_variance["affine"] + 0.1


def test_noise_needs_hardly_any_freedom() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (12, 32, 32), dtype=np.uint8)
    assert JointAlignment(size=32, restarts=2).fit(noise).motion_ in ("translation", "rigid")


@pytest.mark.parametrize(("true", "asked"), [("translation", "similarity"), ("homography", "rigid")])
def test_what_is_asked_for_is_obeyed(true: str, asked: str) -> None:
    images, _ = photograph_copies(true, side=64)
    model = JointAlignment(size=32, motion=asked).fit(images)
    assert model.motion_ == asked
    assert "motion" not in model.decisions_
    if asked == "rigid":
        scales = np.linalg.det(model.transforms_.matrices[:, :2, :2])
        assert np.abs(scales - 1).max() < 1e-6


def test_new_images_move_as_was_chosen_also_after_loading(tmp_path: Path) -> None:
    images, _ = photograph_copies("translation", side=64, n=8)
    model = JointAlignment(size=32).fit(images[:6])
    assert model.motion_ == "translation"
    model.save(tmp_path / "model.safetensors")
    for one in (model, congeal.load(tmp_path / "model.safetensors")):
        found = align_new(one, images[6:])
        assert found.found.motion == "translation"
        assert np.abs(found.transforms.matrices[:, :2, :2] - np.eye(2)).max() < 1e-6
