"""Groups: digits are told apart in any pose, each group is aligned, new images find theirs, odd ones belong nowhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from known_warps import Kept, pixels

import congeal
from congeal import CongealError, CongealGroups
from congeal.evaluation.likeness import coherence, least_coherence
from congeal.geometry import from_normalised, matrix_from_parameters, warp
from congeal.images import prepare

DIGITS = ("1", "3", "7")


def purity(labels: np.ndarray, truth: np.ndarray) -> float:
    """Share of images that are of the commonest kind of their group."""
    table = np.zeros((labels.max() + 1, truth.max() + 1), dtype=int)
    np.add.at(table, (labels, truth), 1)
    return float(table.max(1).sum() / len(labels))


@pytest.fixture(scope="module")
def pile() -> tuple[np.ndarray, np.ndarray]:
    """Three digits in turn, one blank image and eight of noise."""
    images = np.stack([pixels(digit, 0, 60) for digit in DIGITS], 1).reshape(-1, 28, 28)
    truth = np.tile(np.arange(3), 60)
    noise = np.random.default_rng(0).random((8, 28, 28)) > 0.85
    odd = np.concatenate([np.zeros((1, 28, 28)), 255 * noise]).astype(np.uint8)
    return np.concatenate([images, odd]), np.concatenate([truth, np.full(9, -1)])


@pytest.fixture(scope="module")
def fitted(pile: tuple[np.ndarray, np.ndarray]) -> CongealGroups:
    return CongealGroups(method="lsc").fit(pile[0])


def test_the_number_of_groups_is_found_and_they_are_pure(fitted: CongealGroups, pile: tuple) -> None:
    digits = pile[1] >= 0
    labels = fitted.labels_
    assert len(fitted.sizes_) == 3
    sorted_in = digits & (labels >= 0)
    assert sorted_in.sum() > 0.97 * digits.sum()
    assert purity(labels[sorted_in], pile[1][sorted_in]) >= 0.95
    assert fitted.sizes_ == sorted(fitted.sizes_, reverse=True), "the largest group is the first"
    decision = fitted.decisions_["groups"]
    assert decision["n_groups"] == 3
    assert "3 groups" in decision["sentence"]
    assert [count for count, _ in decision["curve"]] == list(range(1, 21))


def test_blank_and_noise_belong_nowhere(fitted: CongealGroups, pile: tuple) -> None:
    odd = pile[1] < 0
    assert (fitted.labels_[odd] == -1).mean() > 0.7
    status = fitted.transforms_.status
    assert (status[odd] != "ok").mean() > 0.85, "one that is in a group is flagged there"
    assert (status[~odd] == "ok").mean() > 0.85
    assert status[np.flatnonzero(odd)[0]] == "blank"
    assert set(status[fitted.labels_ == -1]) <= {"blank", "outlier"}
    assert np.isfinite(fitted.transforms_.matrices).all()


def test_each_group_has_its_own_numbers_and_template(fitted: CongealGroups) -> None:
    assert fitted.templates_.shape == (3, 28, 28)
    for group, size in zip(fitted.groups_, fitted.sizes_, strict=True):
        assert group["n_images"] == size
        assert 0.9 < group["energy_ratio"] < 1.1, "no group shrinks"
        assert group["likeness_after"] > group["likeness_before"]
    assert fitted.quality_.verdict == "good"
    assert len(fitted.tree_) == 2
    table = fitted.transforms_
    assert table.group is not None
    assert table.margin is not None
    assert np.array_equal(table.group, fitted.labels_)


def test_the_way_back_is_that_of_the_images(fitted: CongealGroups, pile: tuple) -> None:
    """Aligned images of one group are alike, those of two groups are not."""
    aligned = fitted.transform(pile[0][:180]).astype(float)
    means = [aligned[fitted.labels_[:180] == group].mean(0).ravel() for group in range(3)]
    for own, mean in enumerate(means):
        members = aligned[fitted.labels_[:180] == own].reshape(-1, 784)
        like = [np.mean([np.corrcoef(one, other)[0, 1] for one in members[:20]]) for other in means]
        assert np.argmax(like) == own, mean.shape


def test_new_images_find_their_group(fitted: CongealGroups) -> None:
    new = np.concatenate([pixels(digit, 100, 120) for digit in DIGITS])
    truth = np.repeat(np.arange(3), 20)
    labels = fitted.predict(new)
    assert purity(labels[labels >= 0], truth[labels >= 0]) >= 0.93
    found = fitted.align_new(prepare(congeal.open_images(new), layout=fitted.layout_)).transforms
    assert found.group is not None
    assert found.margin is not None
    assert np.array_equal(found.group, labels)
    assert (found.margin[labels >= 0] >= 0).all(), "a new image goes where it is most alike"


def test_a_new_image_does_not_depend_on_its_neighbours(fitted: CongealGroups) -> None:
    new = np.concatenate([pixels(digit, 100, 104) for digit in DIGITS])

    def found(images: np.ndarray) -> congeal.Transforms:
        return fitted.align_new(prepare(congeal.open_images(images), layout=fitted.layout_)).transforms

    together, alone = found(new), [found(new[i : i + 1]) for i in range(len(new))]
    assert np.array_equal(together.matrices, np.concatenate([one.matrices for one in alone]))
    assert np.array_equal(together.margin, np.concatenate([one.margin for one in alone]))


def test_a_saved_model_places_images_alike(fitted: CongealGroups, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.safetensors")
    again = congeal.load(tmp_path / "model.safetensors")
    assert isinstance(again, CongealGroups)
    assert (again.sizes_, again.tree_) == (fitted.sizes_, fitted.tree_)
    assert np.array_equal(again.templates_, fitted.templates_)
    new = np.concatenate([pixels(digit, 100, 104) for digit in DIGITS])
    assert np.array_equal(again.transform(new), fitted.transform(new))


def test_same_seed_same_result_and_resumed_fits_end_alike(fitted: CongealGroups, pile: tuple) -> None:
    """Stopped after the first and after the second group."""
    for stop in (1, 2):
        kept = Kept()

        def interrupt(event: object, stop: int = stop) -> None:
            if event.step == stop:  # type: ignore[attr-defined]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            CongealGroups(method="lsc").fit(pile[0], checkpoint=kept, save_every=0, callbacks=[interrupt])
        resumed = CongealGroups(method="lsc").fit(pile[0], checkpoint=kept, save_every=0)
        assert resumed.transforms_ == fitted.transforms_
        assert np.array_equal(resumed.templates_, fitted.templates_)
        assert resumed.history_ == fitted.history_


def test_poses_do_not_matter() -> None:
    """The same two digits, turned, sheared, scaled and put anywhere on a larger canvas."""
    digits = torch.from_numpy(np.concatenate([pixels(digit, 0, 50) for digit in "26"]).astype(np.float32))
    draws = torch.rand(100, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    reach = torch.tensor([0.25, 0.25, 0.3, 0.15, 0.1, 0.15])
    canvas = torch.nn.functional.pad(digits, (6, 6, 6, 6))[:, None]
    poses = from_normalised(matrix_from_parameters(draws * reach), (40, 40))
    images = warp(canvas, poses).round().clamp(0, 255)[:, 0].numpy().astype(np.uint8)
    model = CongealGroups(n_groups=2, method="lsc").fit(images)
    inside = model.labels_ >= 0
    assert inside.mean() > 0.95
    assert purity(model.labels_[inside], np.repeat([0, 1], 50)[inside]) >= 0.95


def test_one_kind_stays_one_group() -> None:
    model = CongealGroups(method="lsc").fit(pixels("3", 0, 100))
    assert len(model.sizes_) == 1
    assert "1 group:" in model.decisions_["groups"]["sentence"]


def test_one_group_is_a_plain_alignment(pile: tuple) -> None:
    model = CongealGroups(n_groups=1, method="lsc").fit(pile[0][:90])
    assert model.sizes_ == [int((model.labels_ == 0).sum())]
    assert np.isnan(model.margins_).all(), "there is no other group"


def test_photographs_upright_and_upside_down(original_lfw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONGEAL_DATA", str(original_lfw))
    faces = congeal.open_images("lfw:Jennifer_Capriati")
    stack = prepare(faces, size=64)
    shown = (stack.images(np.arange(len(stack))).movedim(1, -1).numpy() * 255).astype(np.uint8)
    half = len(shown) // 2
    pile = np.concatenate([shown[:half], shown[half:, ::-1, ::-1]])
    model = CongealGroups(method="lsc").fit(pile)
    assert len(model.sizes_) == 2
    assert purity(model.labels_, np.arange(len(shown)) // half % 2) >= 0.95


@pytest.mark.parametrize(
    ("images", "count", "words"),
    [
        (lambda: pixels("3", 0, 5), 6, "cannot make 6 groups"),
        (lambda: np.repeat(pixels("3", 0, 1), 12, 0), 2, "all alike"),
        (lambda: np.zeros((6, 28, 28), np.uint8), 2, "blank"),
        (lambda: pixels("3", 0, 5), 0, "n_groups must be"),
        (lambda: pixels("3", 0, 5), "many", "n_groups must be"),
    ],
)
def test_wrong_use_is_one_sentence(images: object, count: object, words: str) -> None:
    with pytest.raises(CongealError, match=words):
        CongealGroups(n_groups=count, method="lsc").fit(images())  # type: ignore[operator, arg-type]


def test_identical_images_are_one_group() -> None:
    assert CongealGroups(method="lsc").fit(np.repeat(pixels("3", 0, 1), 12, 0)).sizes_ == [12]


def test_a_method_that_cannot_place_new_images_is_refused() -> None:
    with pytest.raises(CongealError, match="cannot align new images"):
        CongealGroups(method="rasl").fit(pixels("3", 0, 5))


@pytest.mark.parametrize("kind", ["uniform", "shuffled"])
def test_a_tenth_of_noise_takes_no_group(kind: str) -> None:
    rng = np.random.default_rng(1)
    digits = np.concatenate([pixels(digit, 0, 60) for digit in "37"])
    noise = rng.integers(0, 256, (12, 28, 28)).astype(np.uint8)
    if kind == "shuffled":
        noise = rng.permuted(digits[::10].reshape(12, -1), axis=1).reshape(12, 28, 28)
    model = CongealGroups(n_groups=2, method="lsc").fit(np.concatenate([digits, noise]))
    labels, truth = model.labels_[:120], np.repeat([0, 1], 60)
    assert (model.labels_[120:] == -1).all()
    assert (model.transforms_.status[120:] == "outlier").all()
    assert (labels >= 0).mean() > 0.97
    assert purity(labels[labels >= 0], truth[labels >= 0]) >= 0.95
    assert model.predict(noise).tolist() == [-1] * 12, "nor does new noise"


def test_a_set_that_is_noisy_throughout_is_not_thrown_away() -> None:
    rng = np.random.default_rng(2)
    dim = np.concatenate([pixels(digit, 0, 40) for digit in "17"]).astype(float) / 8
    grainy = np.clip(dim + rng.normal(40, 30, dim.shape), 0, 255).astype(np.uint8)
    labels = CongealGroups(n_groups=2).sort(grainy)
    assert (labels >= 0).mean() > 0.9


def test_coherence_tells_patterns_from_noise() -> None:
    stripes = torch.zeros(1, 1, 16, 16)
    stripes[..., ::2] = 1
    noise = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    smooth = torch.linspace(0, 1, 16).expand(1, 1, 16, 16)
    assert float(coherence(stripes)) > 0.9, "every second pixel is alike"
    assert float(coherence(smooth)) > 0.9
    assert float(coherence(noise)) < 0.15
    assert float(coherence(torch.ones(1, 1, 8, 8))) == 0
    assert least_coherence(torch.tensor([0.8, 0.8, 0.0])) == pytest.approx(0.32)
    assert least_coherence(torch.tensor([0.1, 0.1, 0.0])) == 0
