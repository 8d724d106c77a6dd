"""The deep method: the paper's networks and losses to the letter, guards that matter, known warps recovered."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d

import congeal
from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.geometry import from_normalised, invert, matrix_from_parameters, warp
from congeal.images import Stack, prepare
from congeal.images.arrays import ArraySource
from congeal.methods.deep import recipe
from congeal.methods.deep.congealing import DeepCongealing
from congeal.methods.deep.losses import complexity, distortion, positional_weights
from congeal.methods.deep.networks import AutoEncoder, DeSTNet, SmallAutoEncoder, paper_networks, recipe_networks
from congeal.methods.deep.recipe_losses import (
    self_supervision,
    weighted_complexity,
    weighted_distortion,
    without_common_mode,
)
from congeal.methods.deep.settle import Settler
from congeal.methods.deep.state import State
from congeal.methods.deep.train import Trainer
from congeal.methods.registry import preset
from congeal.metrics import corner_error
from congeal.runs.checkpoint import Checkpoint
from congeal.solvers import streaming
from congeal.solvers.appearance import NO_MATCH, ObjectPixels
from congeal.solvers.filters import blur
from congeal.solvers.gaussnewton import GaussNewton
from congeal.solvers.matching import Matcher, Views, random_warps
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.threads import in_order

QUICK = {"steps": 60, "batch_size": 64, "restarts": 4, "refreshes": 3}
TRAINED = QUICK | {"train": "always"}


def count(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


# ---- the paper's networks


def test_the_papers_mnist_networks_have_the_papers_shapes() -> None:
    aligner, autoencoder = paper_networks("mnist", 1, (28, 28), "homography", 32)
    level = (7 * 7 * 4 + 4) + (7 * 7 * 4 * 8 + 8) + (2048 * 8 + 8)
    fusions = sum((8 * m * 256 + 256) + (256 * 8 + 8) for m in range(1, 5))
    assert count(aligner) == 4 * level + fusions == 102_400
    encoder = 1000 + 2 * 90_100 + (1600 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 32 + 32)
    decoder = (32 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 16 + 16) + 1000 + 2 * 90_100 + 101
    assert count(autoencoder) == encoder + decoder
    rebuilt, code = autoencoder(torch.rand(2, 1, 28, 28))
    assert rebuilt.shape == (2, 1, 28, 28)
    assert code.shape == (2, 32)
    assert code.min() >= 0
    assert code.max() <= 1


def test_the_papers_face_networks_have_the_papers_shapes() -> None:
    aligner, autoencoder = paper_networks("lfw", 3, (250, 250), "homography", 32)
    assert isinstance(aligner, DeSTNet)
    assert len(aligner.localisers) == 5
    maps = 256 * 32 * 32  # 250 → 125 → 63 → 32
    level = (3 * 9 * 64 + 64) + (64 * 9 * 128 + 128) + (128 * 9 * 256 + 256) + (maps * 8 + 8)
    fusions = sum((8 * m * 256 + 256) + (256 * 8 + 8) for m in range(1, 6))
    assert count(aligner) == 5 * level + fusions
    assert isinstance(autoencoder, AutoEncoder)
    seed = [layer for layer in autoencoder.decoder if isinstance(layer, torch.nn.Linear)][-1]
    assert seed.out_features == 3072  # conv1-3072: 32×32×3
    with torch.no_grad():
        assert autoencoder(torch.rand(1, 3, 250, 250))[0].shape == (1, 3, 250, 250)


@pytest.mark.parametrize(("channels", "frame"), [(1, (28, 28)), (3, (40, 32)), (2, (17, 61))])
@pytest.mark.parametrize("printed", [True, False], ids=["paper", "recipe"])
def test_networks_take_any_size_and_start_at_the_identity(printed: bool, channels: int, frame: tuple[int, int]) -> None:
    if printed:
        aligner, autoencoder = paper_networks("mnist", channels, frame, "homography", 8)
    else:
        aligner, autoencoder = recipe_networks(channels, frame, "homography", 8)
    images = torch.rand(3, channels, *frame)
    for pose in aligner(images, torch.eye(3).repeat(3, 1, 1)):
        torch.testing.assert_close(pose, torch.eye(3).repeat(3, 1, 1), atol=1e-5, rtol=0)
    seen = avg_pool2d(images, autoencoder.shrink) if isinstance(autoencoder, SmallAutoEncoder) else images
    assert autoencoder(seen)[0].shape == seen.shape


def test_every_layer_of_the_aligner_learns_from_the_first_steps() -> None:
    aligner = DeSTNet(1, (28, 28))
    optimiser = torch.optim.Adam(aligner.parameters(), lr=1e-3)
    images, target = torch.rand(8, 1, 28, 28), torch.eye(3).repeat(8, 1, 1)
    start = random_warps(torch.full((8,), 0.1), (28, 28), torch.Generator().manual_seed(0))
    before = {name: p.detach().clone() for name, p in aligner.named_parameters()}
    for _ in range(3):
        optimiser.zero_grad()
        self_supervision(aligner(images, start), target, (28, 28)).backward()
        optimiser.step()
    assert all(not torch.equal(before[name], p) for name, p in aligner.named_parameters())


# ---- the losses


def test_positional_weights_grow_and_sum_to_one() -> None:
    weights = positional_weights(4, 2)
    torch.testing.assert_close(weights, torch.tensor([1.0, 4, 9, 16]) / 30)


def test_distortion_and_complexity_follow_the_printed_sums() -> None:
    aligned, reference = torch.rand(5, 1, 6, 6), torch.rand(1, 6, 6)
    expected = (aligned - reference).abs().sum((1, 2, 3)).mean()
    torch.testing.assert_close(distortion(aligned, reference), expected)
    torch.testing.assert_close(weighted_distortion(aligned, reference, by_ink=False), expected)
    net = SmallAutoEncoder(1, (6, 6), 3)
    w = positional_weights(3, 1)
    rebuilt, code = net(aligned)
    expected = (rebuilt - aligned).abs().sum((1, 2, 3)).mean() + 0.7 * (code * w).sum(1).mean()
    torch.testing.assert_close(complexity(aligned, rebuilt, code, w, 0.7), expected)
    torch.testing.assert_close(weighted_complexity(net, aligned, w, 0.7), expected)


def test_a_joint_auto_encoder_learns_from_complexity_by_ink() -> None:
    images, w = torch.rand(3, 1, 8, 8), positional_weights(4, 1.0)
    learning, given = SmallAutoEncoder(1, (8, 8), 4), SmallAutoEncoder(1, (8, 8), 4)
    weighted_complexity(learning, images, w, 1.0, by_ink=True).backward()
    weighted_complexity(given, images, w, 1.0, by_ink=True, stop_gradient=True).backward()
    assert learning.template.grad is not None
    assert learning.template.grad.abs().sum() > 0
    assert given.template.grad is None


def test_only_an_auto_encoder_that_learnt_first_tells_what_is_aligned() -> None:
    images = torch.as_tensor(open_named("digits:1").batch(np.arange(100))[..., 0]).float()[:, None] / 255
    moved, w = torch.roll(images, 5, -1), positional_weights(8, 1.0)
    torch.manual_seed(0)
    net = SmallAutoEncoder(1, (28, 28), 8)

    def cost(shown: torch.Tensor) -> float:
        return float(weighted_complexity(net, shown, w, 1.0).detach())

    assert cost(torch.zeros(1, 1, 28, 28)) < 0.1 * cost(images)
    assert cost(moved) == pytest.approx(cost(images), rel=0.05)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(100):
        optimiser.zero_grad()
        weighted_complexity(net, images, w, 1.0).backward()
        optimiser.step()
    assert cost(images) < 0.6 * cost(moved)
    assert cost(images) < cost(torch.zeros(1, 1, 28, 28))


def test_an_emptier_image_is_not_less_complex_by_ink() -> None:
    class Halving(torch.nn.Module):
        """Rebuilds half of whatever it is shown."""

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return images / 2, images.new_zeros(len(images), 1)

    images = torch.rand(3, 1, 8, 8)
    fainter = torch.cat([images, images / 4])
    net, w = Halving(), torch.ones(1)
    raw, by_ink = (
        [float(weighted_complexity(net, some, w, 0.0, by_ink=flag)) for some in fainter.split(3)]
        for flag in (False, True)
    )
    assert raw[1] == pytest.approx(raw[0] / 4)
    assert by_ink == pytest.approx([1 / 3, 1 / 3])


def _shrinking_slope(images: torch.Tensor, reference: torch.Tensor, by_ink: bool) -> float:
    """d D / d log-scale of the object: positive means that shrinking lowers D."""
    parameters = torch.zeros(len(images), 8)
    parameters[:, 3] = -0.05  # the frame looks at a smaller region: the object is larger
    larger = warp(images, from_normalised(matrix_from_parameters(parameters), (28, 28)))
    smaller = warp(images, from_normalised(matrix_from_parameters(-parameters), (28, 28)))
    return float(
        weighted_distortion(larger, reference, by_ink=by_ink) - weighted_distortion(smaller, reference, by_ink=by_ink)
    )


def test_raw_distortion_rewards_shrinking_and_ink_takes_the_reward_away() -> None:
    stack = prepare(open_named("digits:3"))
    images = stack.images(np.arange(len(stack)))
    # Moved apart, as a set is before it is aligned: overlap with the reference is partial, and less ink disagrees less.
    apart = warp(images, random_warps(torch.full((len(images),), 0.15), (28, 28), torch.Generator().manual_seed(1)))
    reference = images[0]
    raw, by_ink = (_shrinking_slope(apart, reference, flag) for flag in (False, True))
    assert raw / float(weighted_distortion(apart, reference, by_ink=False)) > 0.03
    assert by_ink / float(weighted_distortion(apart, reference, by_ink=True)) < 0.5 * raw / float(
        weighted_distortion(apart, reference, by_ink=False)
    )


def test_common_mode_removal_keeps_the_value_and_drops_the_shared_slope() -> None:
    images = prepare(open_named("digits:5")).images(np.arange(32))
    net = SmallAutoEncoder(1, (28, 28), 4)
    position = positional_weights(4, 1)

    def slope(remove: bool) -> tuple[float, float]:
        zoom = torch.zeros(8, requires_grad=True)
        own = 0.05 * torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
        shared = from_normalised(matrix_from_parameters(zoom[None]), (28, 28))
        poses = from_normalised(matrix_from_parameters(own), (28, 28)) @ shared
        poses = without_common_mode(poses, (28, 28)) if remove else poses
        cost = weighted_complexity(net, warp(images, poses), position, 0.0)
        cost.backward()
        assert zoom.grad is not None
        return float(cost.detach()), abs(float(zoom.grad[3]))

    (value, steep), (same, flat) = slope(False), slope(True)
    assert same == pytest.approx(value, rel=1e-4)
    assert flat < 0.02 * steep


# ---- searching poses


def test_random_warps_have_the_asked_size_and_never_fold() -> None:
    warps = random_warps(torch.full((4000,), 0.1), (28, 28), torch.Generator().manual_seed(0))
    corner = torch.tensor([[-0.5, -0.5, 1.0]])
    landed = (warps @ corner.T)[..., 0]
    landed = landed[:, :2] / landed[:, 2:]
    spread = (landed - corner[0, :2]).std(0)
    torch.testing.assert_close(spread, torch.full((2,), 2.8 * 2**0.5), rtol=0.1, atol=0)
    assert torch.linalg.det(random_warps(torch.full((4000,), 0.35), (28, 28), torch.Generator())).min() > 0


def test_matcher_calls_an_emptied_image_no_match() -> None:
    image = prepare(open_named("digits:3")).images(np.arange(1))
    matcher = Matcher(image[0], ObjectPixels())
    away = torch.eye(3)
    away[0, 2] = 60.0
    poses = torch.stack([torch.eye(3), away])
    scores = matcher.score(Views(image.expand(2, -1, -1, -1)), poses)
    assert scores[0] == pytest.approx(1, abs=1e-5)
    assert scores[1] == NO_MATCH


def test_a_narrow_digit_may_be_drawn_out() -> None:
    wide = prepare(open_named("digits:2")).images(np.arange(1))
    squeeze = torch.tensor([[2.5, 0.0, -20.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    narrow = warp(wide, squeeze[None])
    assert narrow.sum() < 0.45 * wide.sum()
    score = Matcher(wide[0], ObjectPixels()).score(Views(narrow), invert(squeeze)[None])
    assert score > 0.8


# ---- the method


def warped_copies(n: int, sigma: float, seed: int = 0) -> tuple[ArraySource, np.ndarray]:
    """n copies of one bundled digit under known warps: (images, aligned_from_source truth)."""
    digit = prepare(open_named("digits:2")).images(np.arange(1))
    copy_from_digit = random_warps(torch.full((n,), sigma), (28, 28), torch.Generator().manual_seed(seed))
    copies = warp(digit.expand(n, -1, -1, -1), invert(copy_from_digit))
    pixels = (copies[:, 0].numpy() * 255).round().astype(np.uint8)
    return ArraySource(pixels), invert(copy_from_digit.double().numpy())


def test_known_warps_come_back_below_a_pixel() -> None:
    source, truth = warped_copies(40, 0.05)
    model = DeepCongealing(**QUICK).fit(source)
    errors = corner_error(model.transforms_.matrices, truth, (28, 28))
    assert np.median(errors) < 0.5
    assert np.mean(errors < 1) > 0.9
    assert not model.quality_.collapsed


def test_self_supervision_teaches_the_net_what_distortion_alone_does_not() -> None:
    source, truth = warped_copies(40, 0.15, seed=3)
    start = np.median(corner_error(np.broadcast_to(np.eye(3), truth.shape), truth, (28, 28)))

    def net_alone(weight: float) -> float:
        model = DeepCongealing(**QUICK | {"steps": 70}, self_supervision=weight, refine=False).fit(source)
        return float(np.median(corner_error(model.transforms_.matrices, truth, (28, 28))))

    taught = net_alone(1.0)
    assert taught < 0.7 * start
    assert taught < 0.95 * net_alone(0.0)


@pytest.mark.parametrize("train", ["never", "always"])
def test_held_out_images_align_as_well_as_those_of_the_fit(train: str) -> None:
    digits = open_named("digits:7")
    images = digits.batch(np.arange(100))[..., 0]
    model = DeepCongealing(**QUICK, train=train).fit(images[:60])
    new = model.align_new(prepare(ArraySource(images[60:]), layout=model.layout_)).quality
    assert new.apsnr_after > model.quality_.apsnr_after - 1.0  # 40 images: their own APSNR varies by that much
    assert new.apsnr_after > new.apsnr_before + 3
    assert not new.collapsed


def test_a_users_reference_colour_and_smaller_motions_work() -> None:
    images = open_named("digits:0").batch(np.arange(40))[..., 0]
    colour = np.repeat(images[..., None], 3, axis=3)
    model = DeepCongealing(**QUICK | {"steps": 40}, motion="affine", reference=3).fit(colour)
    assert model.quality_.apsnr_after > model.quality_.apsnr_before
    assert np.abs(model.transforms_.matrices[:, 2, :2]).max() < 1e-6
    assert not model.quality_.collapsed


# ---- the paper, as printed


def test_presets_are_constructors_that_return_what_runs() -> None:
    printed = congeal.DeepCongealing.paper_mnist(steps=600).get_params()
    assert (printed["steps"], printed["learning_rate"], printed["batch_size"]) == (600, 1e-5, 64)
    assert (printed["complexity_weight"], printed["capacity_penalty"], printed["penalty_power"]) == (1, 1, 1)
    assert "refine" not in printed, "the paper has nothing of ours to record"
    assert congeal.DeepCongealing.paper_lfw().get_params()["size"] == 250
    assert preset("paper-lfw")[1]["networks"] == "lfw"
    with pytest.raises(CongealError, match="unknown preset 'papr'"):
        preset("papr")
    with pytest.raises(TypeError, match="restarts"):
        congeal.DeepCongealing.paper_mnist(restarts=3)


def test_as_many_steps_run_as_were_asked_for() -> None:
    images = open_named("digits:1").batch(np.arange(12))[..., 0]
    model = DeepCongealing.paper_mnist(steps=3, batch_size=4).fit(images)
    assert [row["step"] for row in model.history_] == [1, 2, 3]
    assert model.get_params()["steps"] == 3


def test_the_paper_trains_on_colour_pixels_of_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels in, all of them alike, D + λC summed over pixels, the paper's own networks: seen through `fit`."""
    generator = np.random.default_rng(0)
    photos = generator.integers(20, 255, (6, 32, 32, 3), dtype=np.uint8)
    seen: list[torch.Tensor] = []
    forward = DeSTNet.forward

    def looking(self: DeSTNet, images: torch.Tensor, start: torch.Tensor) -> list[torch.Tensor]:
        seen.append(images.detach().clone())
        return forward(self, images, start)

    monkeypatch.setattr(DeSTNet, "forward", looking)
    model = DeepCongealing.paper_lfw(steps=2, batch_size=4, size=32, reference=0, complexity_weight=0.5).fit(photos)
    assert model.quality_.kind == "photo"
    batch = seen[0]
    assert batch.shape == (4, 3, 32, 32)
    known = torch.as_tensor(photos).movedim(-1, 1).float() / 255
    assert all(any(torch.equal(image, own) for own in known) for image in batch)
    assert isinstance(model.aligner_, DeSTNet)
    assert len(model.aligner_.localisers) == 5
    assert isinstance(model.autoencoder_, AutoEncoder)
    first = model.history_[0]
    # At the identity, before the first step: the plain sum of differences from image 0, over every pixel and channel.
    expected = float((batch - known[0]).abs().sum((1, 2, 3)).mean())
    assert first["distortion"] == pytest.approx(expected, rel=1e-4)
    assert first["loss"] == pytest.approx(first["distortion"] + 0.5 * first["complexity"], rel=1e-5)


def test_the_paper_resumes_and_comes_back_from_a_file(tmp_path: Path) -> None:
    images = open_named("digits:1").batch(np.arange(12))[..., 0]
    options = {"steps": 4, "batch_size": 4, "learning_rate": 1e-3}
    whole = DeepCongealing.paper_mnist(**options).fit(images)

    class Ends(Checkpoint):
        def save(self, state: dict[str, object]) -> None:
            super().save(state)
            if state["state"]["step"] == 2:  # type: ignore[index]
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DeepCongealing.paper_mnist(**options).fit(images, checkpoint=Ends(tmp_path / "c.pt"), save_every=0)
    resumed = DeepCongealing.paper_mnist(**options).fit(images, checkpoint=Checkpoint(tmp_path / "c.pt"))
    assert resumed.transforms_ == whole.transforms_
    whole.save(tmp_path / "m.safetensors")
    again = congeal.load(tmp_path / "m.safetensors")
    assert np.array_equal(again.transform(images), whole.transform(images))


@pytest.mark.parametrize("off", ["distortion", "complexity"])
def test_each_term_can_be_switched_off(off: str) -> None:
    images = open_named("digits:1").batch(np.arange(20))[..., 0]
    options = {"steps": 3, "batch_size": 8, "restarts": 0, "refine": False, "self_supervision": 0.0}
    last = DeepCongealing(**options, complexity_ramp=(0.0, 0.0), **{f"{off}_weight": 0.0}).fit(images).history_[-1]
    (left,) = {"distortion", "complexity"} - {off}
    assert last["loss"] == pytest.approx(last[left], rel=1e-5)


def test_the_gauge_keeps_refinement_from_shrinking_the_object() -> None:
    images = open_named("digits:0").batch(np.arange(60))[..., 0]
    guarded, free = (
        DeepCongealing(**QUICK | {"steps": 20}, guards=flag, refine_steps=60).fit(images).quality_.energy_ratio
        for flag in (True, False)
    )
    assert 0.93 <= guarded <= 1.07
    assert abs(free - 1) > abs(guarded - 1)


def test_the_object_ends_at_one_size_however_the_images_start() -> None:
    images = open_named("digits:3").batch(np.arange(50))[..., 0]
    enlarging = np.array([[0.8, 0.0, 2.7], [0.0, 0.8, 2.7], [0.0, 0.0, 1.0]])
    found = [
        DeepCongealing(**QUICK | {"steps": 20}).fit(images, init=init).quality_.energy_ratio
        for init in (None, np.repeat(enlarging[None], 50, 0))
    ]
    assert all(0.94 <= ratio <= 0.97 for ratio in found), found


def test_small_pictures_take_one_thread_and_give_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, settle = [], Settler.settle

    def looking(self: Settler, views: Views, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(torch.get_num_threads())
        return settle(self, views, start)

    monkeypatch.setattr(Settler, "settle", looking)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        images = open_named("digits:3").batch(np.arange(20))[..., 0]
        DeepCongealing(**QUICK | {"steps": 10}).fit(images).transform(images)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_threads_side_by_side_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_named("digits:3").batch(np.arange(40))[..., 0]
    model = DeepCongealing(**TRAINED | {"steps": 10}).fit(images)
    monkeypatch.setattr(streaming, "CHUNK_VALUES", 2500)  # four parts of ten images
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(model.align_new(prepare(ArraySource(images), layout=model.layout_)).stack_from_frame)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


def test_work_comes_back_in_order_and_so_do_errors() -> None:
    later = threading.Event()

    def first_is_last(item: int) -> int:
        if item == 0:
            later.wait(10)  # the second item is done before the first
        elif item == 1:
            later.set()
        return 10 // (item - 5)

    assert list(in_order(first_is_last, range(5), 3)) == [10 // (item - 5) for item in range(5)]
    with pytest.raises(ZeroDivisionError):
        list(in_order(first_is_last, range(9), 3))


def test_two_fits_with_one_seed_in_two_threads_agree() -> None:
    images = open_named("digits:1").batch(np.arange(12))[..., 0]
    model = {"steps": 3, "restarts": 0, "train": "always"}
    found = list(in_order(lambda _: DeepCongealing(**model).fit(images).transforms_, range(3), 3))
    assert found[0] == found[1] == found[2]


# ---- sets larger than what the aligner learns from


class _KilledWhileAligning(Checkpoint):
    """Keeps what is saved, and ends the run the second time that images of one pass are among it."""

    saves, what = 0, "placed"

    def save(self, state: dict[str, object]) -> None:
        super().save(state)
        if self.what in state["state"]:  # type: ignore[operator]
            self.saves += 1
            if self.saves == 2:
                raise KeyboardInterrupt


@pytest.mark.parametrize("tolerance", [0.0, 1.0], ids=["all steps", "stopped early"])
def test_a_large_set_is_aligned_in_one_pass_that_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tolerance: float
) -> None:
    monkeypatch.setattr("congeal.solvers.streaming.CHUNK_VALUES", 28 * 28 * 5)  # four parts of 20 images
    options = TRAINED | {"steps": 12, "batch_size": 16, "refine_steps": 8, "refreshes": 5, "tolerance": tolerance}
    options["fit_sample"] = 30
    source = open_named("digits:3").limit(80)
    whole = DeepCongealing(**options).fit(source)
    steps = sum("loss" in row for row in whole.history_)
    assert (0 < steps < 12) == (tolerance == 1.0)
    assert whole.quality_.apsnr_after > whole.quality_.apsnr_before + 3
    assert not whole.quality_.collapsed
    with pytest.raises(KeyboardInterrupt):
        DeepCongealing(**options).fit(source, checkpoint=_KilledWhileAligning(tmp_path / "c.pt"), save_every=0)
    looked = []
    settle = Settler.settle

    def counting(self: Settler, views: Views, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        looked.append(len(views))
        return settle(self, views, start)

    monkeypatch.setattr(Settler, "settle", counting)
    resumed = DeepCongealing(**options).fit(source, checkpoint=Checkpoint(tmp_path / "c.pt"), save_every=0)
    assert sum(looked) == 80 - 40, "what was not aligned yet, and nothing else"
    assert resumed.transforms_ == whole.transforms_
    assert resumed.history_ == whole.history_


def test_a_set_that_is_being_settled_goes_on_after_a_kill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("congeal.solvers.streaming.CHUNK_VALUES", 28 * 28 * 2)  # four parts of 8 images
    options, source = TRAINED | {"steps": 4, "refine_steps": 4, "restarts": 0}, open_named("digits:3").limit(32)
    whole = DeepCongealing(**options).fit(source)
    killed = _KilledWhileAligning(tmp_path / "c.pt")
    killed.what = "settled"
    with pytest.raises(KeyboardInterrupt):
        DeepCongealing(**options).fit(source, checkpoint=killed, save_every=0)
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("trained again"))
    resumed = DeepCongealing(**options).fit(source, checkpoint=Checkpoint(tmp_path / "c.pt"), save_every=0)
    assert resumed.transforms_ == whole.transforms_


def test_an_array_may_be_the_papers_reference() -> None:
    images = open_named("digits:1").batch(np.arange(6))[..., 0]
    given = images[2].astype(np.float32) / 255
    by_array, by_place = (
        DeepCongealing.paper_mnist(steps=1, batch_size=4, reference=one).fit(images).history_[0]["distortion"]
        for one in (given, 2)
    )
    assert by_array == pytest.approx(by_place, rel=1e-5)


def test_a_rejected_stage_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shrinking = torch.tensor([[2.0, 0.0, -13.5], [0.0, 2.0, -13.5], [0.0, 0.0, 1.0]])  # a quarter of the ink

    def shrunk(stack: Stack, state: State, *rest: object, **options: object) -> State:
        poses = torch.as_tensor(stack.start.copy()).float() @ shrinking
        return replace(state, poses=poses, template=torch.zeros(1, 28, 28))

    monkeypatch.setattr(recipe, "refine", shrunk)
    images = open_named("digits:3").batch(np.arange(30))[..., 0]
    with caplog.at_level("WARNING"):
        model = DeepCongealing(**TRAINED | {"steps": 20}).fit(images)
    assert "going back" in caplog.text
    assert not model.quality_.collapsed
    assert float(model._guide.template.sum()) > 0
    assert not np.allclose(model.stack_from_frame_, np.eye(3)), "the net's stage, not the start"


# ---- photographs


def test_photographs_under_small_masks() -> None:
    generator = np.random.default_rng(0)
    scene = np.asarray(blur(torch.as_tensor(generator.random((1, 3, 60, 60))).float(), 1.5)[0]).transpose(1, 2, 0)
    scene = (255 * (scene - scene.min()) / np.ptp(scene)).astype(np.uint8)
    alpha = np.zeros((48, 48, 1), np.uint8)
    alpha[10:38, 10:38] = 255  # a third of the picture
    shifts = [(x, y) for x in (3, 6, 9) for y in (4, 6, 8)]
    images = np.stack([np.concatenate([scene[y : y + 48, x : x + 48], alpha], 2) for x, y in shifts])
    model = DeepCongealing(steps=10, restarts=2, motion="similarity").fit(images)
    assert np.isfinite(model.stack_from_frame_).all()
    assert {str(status) for status in model.transforms_.status} <= {"ok", "outlier"}


def test_an_image_without_evidence_is_held_to_what_is_likely() -> None:
    rng = torch.Generator().manual_seed(0)
    moves = torch.randn(50, 8, generator=rng) * torch.tensor([0.1, 0.1, 0.05, 0.05, 0.01, 0.01, 0.005, 0.005])
    start = torch.eye(3).repeat(50, 1, 1)
    poses = from_normalised(matrix_from_parameters(moves), (64, 64))
    likely = PosePrior.from_poses(start, poses, (64, 64))
    away, precision = likely.pull(start, poses, (64, 64), 8)
    torch.testing.assert_close(away, moves - likely.centre, atol=0.02, rtol=0)
    assert precision[0, 6] > 10 * precision[0, 0]
    _, freed = likely.pull(start, poses, (64, 64), 8, looser=torch.tensor([1.0, 3.0]).repeat(25))
    torch.testing.assert_close(freed[:2], torch.stack([precision[0], precision[0] / 9]))
    flat = torch.zeros(50, 1, 64, 64)
    newton = GaussNewton("homography", (64, 64), robust=0.02)
    line = newton.linearise(torch.rand(1, 64, 64, generator=rng))
    free = newton.delta(flat, line, torch.ones_like(flat)).abs()
    held = newton.delta(flat, line, torch.ones_like(flat), (torch.zeros_like(away), precision)).abs()
    assert (held.mean(0)[6:] < 0.75 * free.mean(0)[6:]).all()
    assert (held.mean(0)[:2] > 0.9 * free.mean(0)[:2]).all()


def test_an_odd_pose_must_match_much_better() -> None:
    likely = PosePrior(torch.zeros(8), torch.full((8,), 0.05))
    start = torch.eye(3).repeat(2, 1, 1)
    moved = torch.zeros(2, 8)
    moved[1, 4] = 0.4  # eight standard deviations of stretch
    poses = from_normalised(matrix_from_parameters(moved), (64, 64))

    def discounted(*scores: float) -> torch.Tensor:
        return likely.discount(torch.tensor(scores), start, poses, torch.ones(64, 64))

    usual, odd = discounted(0.5, 0.55)
    assert usual == pytest.approx(0.5, abs=1e-3)
    assert odd < usual
    usual, odd = discounted(0.5, 0.7)
    assert odd > usual
    assert discounted(NO_MATCH, NO_MATCH).tolist() == [NO_MATCH, NO_MATCH]


@pytest.mark.parametrize("wrong", [{"device": "gpu"}, {"kind": "drawing"}, {"motion": "wobbly"}, {"reference": "mean"}])
def test_settings_that_do_not_exist_are_named(wrong: dict[str, str]) -> None:
    with pytest.raises(CongealError, match=next(iter(wrong.values()))):
        DeepCongealing(**wrong).fit(np.zeros((3, 8, 8), np.uint8))


def test_the_paper_looks_at_faces_of_250_pixels() -> None:
    photos = np.random.default_rng(0).integers(0, 255, (2, 250, 250, 3), dtype=np.uint8)
    assert DeepCongealing.paper_lfw()._prepare(photos, None).frame == (250, 250)
    assert DeepCongealing()._prepare(photos, None).frame == (64, 64)


def test_tensorboard_has_every_step_of_a_run_that_stopped(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from congeal.methods.job import TensorBoard

    images = open_named("digits:1").batch(np.arange(20))[..., 0]
    options = {"steps": 60, "batch_size": 8, "restarts": 0, "refine": False, "tolerance": 1.0}
    model = DeepCongealing(**options).fit(images, callbacks=[TensorBoard(tmp_path)])
    written = EventAccumulator(str(tmp_path)).Reload()
    steps = [event.step for event in written.Scalars("deep/loss")]
    assert steps == [row["step"] for row in model.history_]
    assert len(steps) < 60
