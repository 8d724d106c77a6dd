"""A sequence that drifts however far: neighbours, far links, the joint adjustment, references, the smoothed path."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import congeal
from congeal import CongealError
from congeal.filters import local_contrast
from congeal.geometry import from_normalised, matrix_from_parameters
from congeal.geometry.matrix import corners, map_points
from congeal.images.resample import warp_pixels
from congeal.methods.sequence.cross_correlation import find_shifts, overlap, shifted
from congeal.methods.sequence.estimator import SequenceCongealing
from congeal.methods.sequence.pairwise_registration import PairSolver, PictureTiles
from congeal.methods.sequence.pose_graph import PoseGraph, adjust, smooth_trajectory
from congeal.methods.sequence.tracking import Links, TrackedViews, restrict_motion
from congeal.runs.checkpoint import Checkpoint

FRAME = (48, 64)
SIZE = (72, 96)


def shift(x: float, y: float) -> torch.Tensor:
    return shifted(torch.tensor([[x, y]], dtype=torch.float64))[0]


@cache
def drifting(n: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Frames that drift by two widths and shake, and scene_from_frame."""
    rng, scene = np.random.default_rng(0), data.astronaut()
    truth = np.repeat(np.eye(3)[None], n, 0)
    truth[:, 0, 2] = 40 + 2 * SIZE[1] * np.arange(n) / (n - 1) + rng.normal(0, 1, n)
    truth[:, 1, 2] = 60 + rng.normal(0, 1, n)
    frames = [warp_pixels(scene, matrix, SIZE) + rng.normal(0, 3, (*SIZE, 3)) for matrix in truth]
    return np.clip(np.rint(frames), 0, 255).astype(np.uint8), truth


def apart(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(n,) pixels by which each frame lies wrong against the first."""
    ours, theirs = (np.linalg.inv(some[0]) @ some for some in (found, truth))
    corner = corners(SIZE)
    return np.linalg.norm(map_points(np.linalg.inv(theirs) @ ours, corner) - corner, axis=-1).mean(1)


@cache
def fitted() -> SequenceCongealing:
    return SequenceCongealing().fit(drifting()[0])


# ---- the method


def test_a_drift_of_two_widths_is_followed() -> None:
    model, (_, truth) = fitted(), drifting()
    found = model.transforms_.matrices
    assert np.allclose(found[0], np.eye(3), atol=1e-6)  # the frame is that of the first
    assert model.motion_ == "translation"
    assert apart(found, truth).max() < 0.25
    steps = [apart(found[i : i + 2], truth[i : i + 2])[1] for i in range(len(truth) - 1)]
    assert max(steps[5:]) < 0.05
    assert max(steps[:5]) < 0.2  # these show little but a blurred background, under noise


def test_error_bars_hold_what_adds_up_along_the_chain() -> None:
    (_, truth), found = drifting(), fitted().transforms_
    error, bars = apart(found.matrices, truth)[1:], found.uncertainty_px[1:]
    assert (error < 3 * bars).all()
    assert np.median(bars) < 0.1
    near = SequenceCongealing(motion="translation", smooth=12).fit(drifting()[0][:8]).transforms_.uncertainty_px
    assert near[-1] < 0.7 * found.uncertainty_px[7]  # what has no reference is known against its neighbours
    chained = SequenceCongealing(motion="translation", reference="previous").fit(drifting()[0][:8]).transforms_
    assert (np.diff(chained.uncertainty_px[1:]) > 0).all()


def test_far_views_are_brought_into_a_motion_step_by_step() -> None:
    """A turn of a thousandth, once taken out, moves nothing by pixels, however far the sequence has drifted."""
    turn, frame = 1e-3, (48, 64)
    step = shift(-20, 0) @ torch.tensor([[1, -turn, 0], [turn, 1, 0], [0, 0, 1]], dtype=torch.float64)
    views = [torch.eye(3, dtype=torch.float64)]
    for _ in range(40):
        views.append(step @ views[-1])
    chained = torch.stack(views)
    links = Links(torch.arange(40), torch.arange(1, 41), torch.empty(0)).between(chained)
    known = TrackedViews(chained, links, torch.zeros(41), 0.0, torch.zeros(41, dtype=torch.bool))
    result = restrict_motion(known, "translation", frame)
    steps = result.views[1:] @ torch.linalg.inv(result.views[:-1])
    assert torch.allclose(steps[:, :2, 2], torch.tensor([-20.0, 0], dtype=torch.float64), atol=0.1)
    assert torch.allclose(result.links.matrices, steps, atol=0.1)


def test_the_verdict_is_by_neighbours() -> None:
    """Most frames have left the frame of the first, which says nothing about how well they are aligned."""
    model = fitted()
    assert model.transforms_.out_of_frame[-1] == 1
    assert model.quality_.verdict == "good", (model.quality_.advice, model.transforms_.score)
    assert model.quality_.sequence
    assert model.quality_.likeness_after > model.quality_.likeness_before + 0.1
    assert (model.transforms_.status == "ok").all()


def test_a_foreign_frame_is_passed_by(tmp_path: Path) -> None:
    frames, truth = drifting()
    frames = frames.copy()
    frames[10] = np.random.default_rng(3).integers(0, 255, frames[10].shape)
    model = SequenceCongealing(motion="translation").fit(frames)
    others = np.arange(len(frames)) != 10
    assert apart(model.transforms_.matrices[others], truth[others]).max() < 0.5
    assert model.transforms_.status[10] != "ok"
    assert (model.transforms_.status[others] == "ok").all()


def test_across_frames_that_show_nothing_no_error_is_known() -> None:
    """The camera looks at an empty sky in between: what comes after may lie anywhere against what came before."""
    frames = drifting()[0]
    sky = np.random.default_rng(4).normal(200, 3, (5, *SIZE, 3)).clip(0, 255).astype(np.uint8)
    broken = np.concatenate([frames[:4], sky, frames[14:]])
    model = SequenceCongealing(motion="translation").fit(broken)
    found = model.transforms_
    assert (found.status[:9] != "ok").all()  # the shorter stretch, and the sky
    assert (found.status[9:] == "ok").all()
    assert np.isfinite(found.uncertainty_px[:4]).all()  # against the first, which is in the shorter one
    assert np.isnan(found.uncertainty_px[4:]).all()
    said = model.decisions_["sequence"]
    assert said["lost"] == 9
    assert "9 images show too little of what the others show" in said["sentence"]
    assert "choose another one" in said["sentence"]
    assert "known to" not in said["sentence"]
    assert model.quality_.verdict == "mixed"
    assert "empty sky" in model.quality_.advice
    steady = SequenceCongealing(motion="translation", smooth=6).fit(broken)  # each stretch by itself
    assert steady.decisions_["sequence"]["lost"] == 5
    known = np.isfinite(steady.transforms_.uncertainty_px)
    assert known[:4].all()
    assert not known[4:9].any()
    assert known[10:].all()


def test_a_sequence_of_nothing_is_no_alignment() -> None:
    sky = np.random.default_rng(4).normal(200, 3, (6, *SIZE)).clip(0, 255).astype(np.uint8)
    model = SequenceCongealing(motion="translation").fit(sky)
    assert model.quality_.verdict == "failed"
    assert (model.transforms_.status != "ok").all()
    assert np.isnan(model.transforms_.uncertainty_px).all()


def test_the_frame_of_the_result_is_the_reference(tmp_path: Path) -> None:
    frames, truth = drifting()
    some = frames[:10]
    by_index, mean, previous = (
        SequenceCongealing(motion="translation", reference=reference).fit(some).transforms_.matrices
        for reference in (6, "mean", "previous")
    )
    assert np.allclose(by_index[6], np.eye(3), atol=1e-6)
    assert np.allclose(np.linalg.inv(mean).mean(0), np.eye(3), atol=1e-3)
    assert np.allclose(previous[0], np.eye(3), atol=1e-6)
    for found in (by_index, mean, previous):
        assert apart(found, truth[:10]).max() < 0.5
    Image.fromarray(frames[4]).save(tmp_path / "fourth.png")
    by_picture = SequenceCongealing(motion="translation", reference=str(tmp_path / "fourth.png")).fit(some)
    assert np.abs(by_picture.transforms_.matrices[4] - np.eye(3)).max() < 0.1


def test_smoothing_leaves_the_drift_and_takes_the_jitter() -> None:
    frames, truth = drifting()
    found = SequenceCongealing(motion="translation", smooth=12).fit(frames).transforms_.matrices
    shown = truth @ np.linalg.inv(found)  # scene_from_output
    steps, before = np.diff(shown[:, 0, 2]), np.diff(truth[:, 0, 2])
    assert abs(steps.mean() - before.mean()) < 0.3  # it drifts as before
    assert steps.std() < 0.35 * before.std()


def test_it_resumes_to_the_same_answer(tmp_path: Path) -> None:
    frames = drifting()[0][:8]

    class Stopped(Exception):
        pass

    def stop(event: Any) -> None:
        raise Stopped

    kept = Checkpoint(tmp_path / "state.pt")
    states: list[Any] = []
    whole = SequenceCongealing().fit(frames)

    def keep(state: dict[str, Any]) -> None:
        states.append(state)
        Checkpoint.save(kept, state)
        if len(states) == 1:
            raise Stopped

    kept.save = keep  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        SequenceCongealing().fit(frames, checkpoint=kept)
    again = SequenceCongealing().fit(frames, checkpoint=kept)
    assert np.array_equal(again.transforms_.matrices, whole.transforms_.matrices)
    assert again.decisions_ == whole.decisions_


def test_sizes_that_say_nothing_new_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From pictures in which all is known to a fraction of an original's pixel it goes on to the originals."""
    rng, places = np.random.default_rng(0), [shift(40 + 7 * i, 60 - 3 * i).numpy() for i in range(5)]
    frames = np.stack([warp_pixels(data.astronaut(), place, (240, 320)) for place in places])
    frames = np.clip(frames + rng.normal(0, 3, frames.shape), 0, 255).astype(np.uint8)
    kept = Checkpoint(tmp_path / "state.pt")
    short = SequenceCongealing(motion="translation").fit(frames, checkpoint=kept)
    again = SequenceCongealing(motion="translation").fit(frames, checkpoint=kept)  # from what was kept in the end
    monkeypatch.setattr("congeal.methods.sequence.estimator.MAX_SKIPPED_ERROR_PX", 0.0)
    long = SequenceCongealing(motion="translation").fit(frames)
    said = [model.decisions_["resolution"]["sentence"] for model in (short, again, long)]
    assert said == ["Worked at 64, then 320 pixels."] * 2 + ["Worked at 64, then 192, then 320 pixels."]
    assert np.array_equal(again.transforms_.matrices, short.transforms_.matrices)
    assert np.abs(short.transforms_.matrices - long.transforms_.matrices).max() < 0.01
    assert np.abs(short.transforms_.matrices[:, :2, 2] - np.array([[7.0 * i, -3 * i] for i in range(5)])).max() < 0.05


def test_what_cannot_be_asked_of_a_sequence(tmp_path: Path) -> None:
    frames = drifting()[0][:4]
    for options, words in (
        ({"smooth": 10}, "add --sequence"),
        ({"reference": "first"}, "add --sequence"),
        ({"sequence": True, "method": "lsc"}, "leave out --method"),
        ({"sequence": True, "smooth": 1}, "at least 2"),
        ({"sequence": True, "smooth": 5, "reference": "mean"}, "no reference"),
        ({"sequence": True, "reference": "medoid"}, "'first', 'previous', 'mean'"),
        ({"sequence": True, "reference": 9}, "there is no image 9"),
    ):
        with pytest.raises(CongealError, match=words):
            congeal.align(frames, tmp_path / "run", quiet=True, **options)
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_sequence(tmp_path: Path) -> None:
    frames, truth = drifting()
    result = congeal.align(frames[:8], tmp_path / "run", sequence=True, motion="translation", quiet=True)
    assert result.metrics["method"] == "sequence"
    assert result.metrics["verdict"] == "good"
    assert apart(result.transforms.matrices, truth[:8]).max() < 0.4
    assert (tmp_path / "run" / "report.html").is_file()
    assert np.array_equal(np.load(tmp_path / "run" / "aligned" / "aligned.npy")[0], frames[0])


# ---- its parts


def test_a_shift_is_found_however_large() -> None:
    scene = torch.as_tensor(np.random.default_rng(0).normal(size=(90, 120)), dtype=torch.float32)
    places = [(0, 0), (30, 5), (3, 20), (38, 0)]
    pictures = torch.stack([scene[y : y + 48, x : x + 64] for x, y in places])
    found, alike = find_shifts(pictures, torch.zeros(3, dtype=torch.int64), torch.tensor([1, 2, 3]))
    assert torch.equal(found, -torch.tensor(places[1:], dtype=torch.float64))
    assert float(alike.min()) > 0.99


def test_overlap_is_what_both_show() -> None:
    moved = torch.stack([shift(0, 0), shift(32, 0), shift(-32, 24), shift(70, 0)])
    assert torch.allclose(overlap(moved, FRAME), torch.tensor([1, 0.5, 0.25, 0], dtype=torch.float64), atol=0.05)


@pytest.mark.parametrize("frame", [(48, 64), (240, 320)])  # looked up in one go, and picture by picture
def test_a_pair_is_registered_alone_as_among_others(frame: tuple[int, int]) -> None:
    grey = torch.as_tensor(data.astronaut()[:300, :400].mean(2), dtype=torch.float32)[None] / 255
    moved = [(5 + 3 * k, 8 - 2 * k) for k in range(4)]
    pictures = local_contrast(torch.stack([grey[:, y : y + frame[0], x : x + frame[1]] for x, y in moved]))[:, 0]
    first, second = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 2])  # the second counts from the second picture
    tiles, solver = PictureTiles.of(pictures[:3], "translation"), PairSolver("translation", frame, 0.0)
    begin = shift(0, 0).repeat(4, 1, 1)

    def registered(rows: list[int]) -> torch.Tensor:
        a = PictureTiles.cat([tiles.one(int(first[row])) for row in rows])
        used, which = second[rows].unique(return_inverse=True)
        return solver.register(pictures[1:][used], None, which, a, begin[rows], 8).matrices

    together = registered([0, 1, 2, 3])
    alone = torch.cat([registered([row]) for row in range(4)])
    assert float((together - alone).abs().max()) < 1e-6
    assert float((together[0] - shift(-3, 2)).abs().max()) < 0.05


def test_views_that_disagree_do_not_wander_together() -> None:
    """Nothing says where all views lie together, so they stay where they began, however pairs disagree."""
    rng, n = np.random.default_rng(0), 40
    truth = torch.stack([shift(-3.0 * i, 2.0 * i) for i in range(n)])
    pairs = [(i, i + step) for step in (1, 4, 16) for i in range(0, n - step, max(1, step // 2))]

    def err(size: float) -> torch.Tensor:
        return from_normalised(matrix_from_parameters(torch.as_tensor(rng.normal(0, size, (1, 3)))), FRAME)[0]

    matrices = torch.stack([truth[b] @ torch.linalg.inv(truth[a]) @ err(5e-4) for a, b in pairs])
    information = torch.eye(3, dtype=torch.float64).repeat(len(pairs), 1, 1) * 5e-4**-2
    first, second = (torch.tensor([pair[k] for pair in pairs]) for k in (0, 1))
    begin = torch.stack([view @ err(1e-3) for view in truth])
    result = adjust(PoseGraph(first, second, matrices, information, FRAME, "rigid"), begin)
    apart = result.views @ torch.linalg.inv(truth)
    assert float((apart - torch.eye(3, dtype=torch.float64)).abs().amax((1, 2)).median()) < 0.5


def test_far_links_keep_errors_from_adding_up() -> None:
    """Steps that each err by half a pixel: as a chain the end is far off; links over four steps hold it."""
    rng, n = np.random.default_rng(1), 41
    truth = torch.stack([shift(-3.0 * i, 0) for i in range(n)])
    pairs = [(i, i + 1, 0.5) for i in range(n - 1)] + [(i, i + 4, 0.02) for i in range(0, n - 4, 2)]
    matrices = torch.stack([truth[b] @ torch.linalg.inv(truth[a]) @ shift(*rng.normal(0, e, 2)) for a, b, e in pairs])
    information = torch.stack([torch.eye(2, dtype=torch.float64) * (max(FRAME) / 2 / e) ** 2 for *_, e in pairs])
    first, second = (torch.tensor([pair[k] for pair in pairs]) for k in (0, 1))
    chain = [torch.eye(3, dtype=torch.float64)]
    for matrix in matrices[: n - 1]:
        chain.append(matrix @ chain[-1])
    result = adjust(PoseGraph(first, second, matrices, information, FRAME, "translation"), torch.stack(chain))
    ends = result.views[-1] @ torch.linalg.inv(result.views[0])
    assert float((chain[-1] - truth[-1]).abs().max()) > 0.5
    assert float((ends - truth[-1]).abs().max()) < 4 * result.ends < 0.8


def test_a_link_that_contradicts_the_others_does_not_count() -> None:
    n = 9
    truth = torch.stack([shift(-2.0 * i, 0) for i in range(n)])
    pairs = [(i, i + step) for step in (1, 2) for i in range(n - step)]
    matrices = torch.stack([truth[b] @ torch.linalg.inv(truth[a]) for a, b in pairs])
    matrices[3] = shift(25, 10) @ matrices[3]
    information = torch.eye(2, dtype=torch.float64).repeat(len(pairs), 1, 1) * (32 / 0.05) ** 2
    first, second = (torch.tensor([pair[k] for pair in pairs]) for k in (0, 1))
    result = adjust(PoseGraph(first, second, matrices, information, FRAME, "translation"), truth.clone())
    assert float((result.views @ torch.linalg.inv(result.views[0]) - truth).abs().max()) < 0.1


def test_a_line_is_smoothed_to_itself() -> None:
    views = torch.stack([shift(-0.8 * i, 0.1 * i) for i in range(30)])
    assert torch.allclose(
        smooth_trajectory(views, 10, "translation", FRAME), torch.eye(3, dtype=torch.float64), atol=1e-9
    )
