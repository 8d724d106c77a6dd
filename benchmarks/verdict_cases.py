"""Alignments of known quality, for benchmarks/everyday_verdict.py: sets with a right answer, and ways to spoil it.

A *case* is a set, the poses it started at, the poses an alignment ended at, and the verdicts that are right. Poses are
made from the truth, not found: right ones, jittered, zoomed, shrunk, emptied, with halves turned or mirrored, with
foreign images. Digits have no truth; there an alignment by `lsc` or `deep` stands for the right one. More cases are
what these two really make of sets with known warps, and of sets that nobody can align. Everything is drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from everyday_sets import copies, drift, photograph
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from congeal import LSC, JointAlignment, open_images
from congeal.datasets.photographs import landmarks
from congeal.evaluation import corner_error
from congeal.geometry import from_normalised, invert, map_points, matrix_from_parameters, normalise
from congeal.images import Stack, prepare
from congeal.methods.measure import measure

Matrices = NDArray[np.float64]
Truths = NDArray[np.bool_]
FINE, WRONG = ("good", "unchanged"), ("failed", "worse", "mixed", "zoomed", "shrunk")
"""Verdicts that say "use it", and those that do not."""

PHOTOGRAPHS = ("coffee", "ihc", "motorcycle_left", "flower", "china")
STACKS = (("hubble_deep_field", 8), ("retina", 16), ("moon", 16), ("cell", 8))
"""Photographs, and what drifts in stacks with the bits of its pixels."""
PEOPLE = ("Serena_Williams", "Tony_Blair", "George_W_Bush")
DIGITS, LOOKS_ANOTHER_IN_A_MIRROR = (0, 1, 4, 5, 6, 8, 9), (4, 5, 6, 9)
PAIRS = ((0, 4), (5, 8), (6, 1), (9, 2))
SKIPPED = 2_000  # images of each digit: thresholds were chosen on the first few hundred
ROUGH, SPOILT, FAR = 0.06, 0.05, 0.2  # of the frame: how far off a start is, and alignments that went wrong
NEAR = {"photographs": 0.005, "stacks": 0.005, "faces": 0.03}
"""Corner error of a right alignment, as a share of the frame: landmarks of faces are only that good."""
FACE = 128  # pixels of the frame that faces are aligned in
TURNED_BACK = 0.92  # of the likeness of digits that were not turned: `deep` 0.95 and more, `lsc` 0.87 and less
METHODS = {"lsc": LSC, "joint": JointAlignment}
"""Those whose own alignments are judged."""


@dataclass(frozen=True)
class Case:
    """One alignment of known quality.

    Attributes
    ----------
    group : str
        What kind of set it is: digits, faces, photographs, stacks or nothing in common.
    quality : str
        What is right or wrong with it.
    name : str
        The set.
    stack : Stack
        What was aligned, with its start.
    found : (N,3,3) array
        stack_from_frame that the alignment ended at.
    verdicts : tuple of str
        Those that are right.
    foreign : (N,) bool array, optional
        Images that do not belong; None where statuses are not looked at.
    """

    group: str
    quality: str
    name: str
    stack: Stack
    found: NDArray[np.float32]
    verdicts: tuple[str, ...]
    foreign: Truths | None = None


@dataclass(frozen=True)
class Truth:
    """A set with a right answer: `right` is aligned_from_source (N,3,3), `size` the aligned (height, width).

    points (N,P,2): marks in the sources, where these rather than the frame's corners tell how right an answer is.
    """

    group: str
    name: str
    images: NDArray[Any]
    right: Matrices
    size: tuple[int, int]
    mirrors: bool = True  # whether its mirror image is another thing
    points: Matrices | None = None

    def started(self, start: Matrices, images: NDArray[Any] | None = None) -> Stack:
        """The set as methods see it, started at aligned_from_source `start`."""
        source = open_images(self.images if images is None else images)
        return prepare(source, size=64, init=start, init_size=self.size)

    def jitter(self, amount: float, seed: int) -> Matrices:
        """(N,3,3) random similarities of the aligned picture: shifts, turns and scales of about that share of it."""
        draws = np.random.default_rng([seed, round(1e6 * amount)]).standard_normal((len(self.right), 4))
        parameters = torch.from_numpy(draws * amount * np.array([2, 2, 1, 1]))
        return from_normalised(matrix_from_parameters(parameters).numpy(), self.size)

    def error(self, found: Matrices) -> float:
        """Mean error of aligned_from_source `found`, of corners or marks, as a share of the longer side."""
        if self.points is None:
            return float(corner_error(found, self.right, self.size).mean()) / max(self.size)
        marks = map_points(found, self.points)
        return float(np.linalg.norm(marks - marks.mean(0), axis=2).mean()) / max(self.size)


def poses(stack: Stack, aligned_from_source: Matrices) -> NDArray[np.float32]:
    """stack_from_frame (N,3,3)."""
    back = invert(np.asarray(aligned_from_source, dtype=np.float64)) @ stack.aligned_from_frame
    return normalise(stack.stack_from_source @ back).astype(np.float32)


# ---- sets with a right answer


@cache
def truths() -> tuple[Truth, ...]:
    """Photographs and stacks under known warps, faces with landmarks."""
    made = [("photographs", copies(name, 256, "similarity", n=20)) for name in PHOTOGRAPHS]
    made += [("stacks", drift(name, 300, n=10, turn=2.0, bits=bits)) for name, bits in STACKS]
    known = [Truth(group, m.name, m.images, invert(np.asarray(m.truth)), m.size) for group, m in made]
    return (*known, *(faces(person) for person in PEOPLE))


def faces(person: str, n: int = 40) -> Truth:
    """Photographs of a person of LFW; right is where a similarity brings eyes and nose together."""
    source = open_images(f"lfw:{person}", limit=n)
    points = landmarks(source)
    rows = np.flatnonzero(np.isfinite(points).all((1, 2)))
    images = np.stack([source.read(int(i)).pixels.mean(-1).round().astype(np.uint8) for i in rows])
    wanted = np.array([[0.3, 0.4], [0.7, 0.4], [0.5, 0.62]]) * FACE
    right = similarities(points[rows], wanted)
    return Truth("faces", person, images, right, (FACE, FACE), mirrors=False, points=points[rows])


def similarities(points: Matrices, wanted: Matrices) -> Matrices:
    """(N,3,3) the similarities that bring points (N,P,2) nearest to the wanted ones (P,2), by least squares."""
    middle, goal = points.mean(1, keepdims=True), wanted.mean(0)
    z, w = ((p[..., 0] + 1j * p[..., 1]) for p in (points - middle, wanted - goal))
    turn = (z.conj() * w).sum(1) / (np.abs(z) ** 2).sum(1)
    found = np.zeros((len(points), 3, 3))
    found[:, 0, 0], found[:, 0, 1], found[:, 1, 0], found[:, 1, 1] = turn.real, -turn.imag, turn.imag, turn.real
    found[:, 2, 2] = 1
    found[:, :2, 2] = goal - np.einsum("nij,nj->ni", found[:, :2, :2], middle[:, 0])
    return found


# ---- alignments of them


def about_centre(size: tuple[int, int], linear: Any) -> Matrices:
    """(…,3,3) what a 2×2 matrix (…,2,2) does about the centre of a picture."""
    linear = np.asarray(linear, dtype=np.float64)
    centre = (np.array(size[::-1]) - 1) / 2
    matrix = np.zeros((*linear.shape[:-2], 3, 3))
    matrix[..., :2, :2], matrix[..., 2, 2] = linear, 1
    matrix[..., :2, 2] = centre - linear @ centre
    return matrix


def halved(truth: Truth, linear: Any) -> Matrices:
    """The right poses, but every other one followed by a 2×2 matrix."""
    found = truth.right.copy()
    found[::2] = about_centre(truth.size, linear) @ found[::2]
    return found


def spoilt_truths(truth: Truth, seed: int) -> Iterator[Case]:
    """Every quality of one set."""
    right, n = truth.right, len(truth.right)
    rough, aligned = truth.started(truth.jitter(ROUGH, seed) @ right), truth.started(right)
    nobody = np.zeros(n, dtype=bool)

    def case(quality: str, stack: Stack, found: Matrices, *verdicts: str, foreign: Truths | None = None) -> Case:
        return Case(truth.group, quality, truth.name, stack, poses(stack, found), verdicts, foreign)

    yield case("right", rough, right, *FINE, foreign=nobody)
    yield case("right, jittered by 0.2 %", rough, truth.jitter(0.002, seed + 1) @ right, *FINE, foreign=nobody)
    yield case("aligned already", aligned, right, *FINE, foreign=nobody)
    yield case("aligned already, moved by 0.05 %", aligned, truth.jitter(0.0005, seed) @ right, *FINE)
    yield case("aligned, then spoilt", aligned, truth.jitter(SPOILT, seed) @ right, "worse", "failed")
    yield case("lost", rough, truth.jitter(FAR, seed) @ right, *WRONG)
    yield case("shrunk", rough, about_centre(truth.size, 0.6 * np.eye(2)) @ right, "shrunk")
    yield case("zoomed", rough, about_centre(truth.size, 1.6 * np.eye(2)) @ right, "zoomed")
    away = np.array([[1, 0, 0.7 * truth.size[1]], [0, 1, 0], [0, 0, 1]])
    yield case("emptied", rough, away @ right, *WRONG)
    scale = np.exp(np.random.default_rng(seed).uniform(np.log(0.34), np.log(13), n))
    yield case("scaled wildly", aligned, about_centre(truth.size, scale[:, None, None] * np.eye(2)) @ right, *WRONG)
    for share, verdicts in ((0.1, (*FINE, "mixed")), (0.35, WRONG)):
        gone = np.arange(n) >= n - max(1, round(share * n))
        lost = np.where(gone[:, None, None], truth.jitter(FAR, seed + 2) @ right, right)
        yield case(f"{share:.0%} lost", rough, lost, *verdicts, foreign=gone)
    lit = truth.started(truth.jitter(ROUGH, seed) @ right, in_other_light(truth.images, seed))
    yield case("right, in other light", lit, right, *FINE, foreign=nobody)
    noisy = with_noise(truth.images, seed)
    yield case("right, noisy", truth.started(truth.jitter(ROUGH, seed) @ right, noisy), right, *FINE, foreign=nobody)
    if truth.group != "faces":  # whose landmarks are not as good as that
        off = truth.jitter(0.006, seed) @ right
        yield case("noisy and aligned, then spoilt a little", truth.started(right, noisy), off, "worse", "failed")
    yield case("half turned by 180°", rough, halved(truth, -np.eye(2)), "mixed")
    yield case("half turned by 90°", rough, halved(truth, [[0, -1], [1, 0]]), "mixed")
    if truth.mirrors:
        yield case("half mirrored", rough, halved(truth, np.diag([-1, 1])), "mixed")
    for share, verdicts in ((0.1, (*FINE, "mixed")), (0.3, ("mixed",))):
        images, foreign = with_strangers(truth, share, seed)
        stack = truth.started(truth.jitter(ROUGH, seed) @ right, images)
        yield case(f"{share:.0%} foreign", stack, right, *verdicts, foreign=foreign)
    images = truth.images.copy()
    images[n // 2] = images.max() // 2
    yield case("one blank", truth.started(truth.jitter(ROUGH, seed) @ right, images), right, *FINE)


def in_other_light(images: NDArray[Any], seed: int) -> NDArray[Any]:
    """Each image with a gamma of its own and a lamp from another side."""
    rng = np.random.default_rng(seed)
    height, width = images.shape[1:3]
    y, x = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)
    peak, lit = float(images.max()), np.empty_like(images)
    for i, image in enumerate(images):
        angle = rng.uniform(0, 2 * np.pi)
        lamp = 0.65 + 0.35 * (np.cos(angle) * x + np.sin(angle) * y) / np.sqrt(2)
        lit[i] = peak * (image / peak) ** rng.uniform(0.6, 1.7) * lamp.reshape(height, width, *(1,) * (image.ndim - 2))
    return lit


def with_noise(images: NDArray[Any], seed: int) -> NDArray[Any]:
    """Noise of 8 % of the range more."""
    peak = images.max()
    noise = 0.08 * peak * np.random.default_rng(seed).standard_normal(images.shape, np.float32)
    return np.clip(images + noise, 0, peak).astype(images.dtype)


def with_strangers(truth: Truth, share: float, seed: int) -> tuple[NDArray[Any], Truths]:
    """The images, the last of them replaced by textures, shuffled pixels and parts of other pictures."""
    rng = np.random.default_rng(seed)
    images, n = truth.images.copy(), len(truth.images)
    foreign = np.arange(n) >= n - max(1, round(share * n))
    shape, peak = images.shape[1:3], images.max()
    others = [photograph(name).mean(-1) for name in ("grass", "gravel", "brick", "rocket", "coins", "chelsea")]
    for k, i in enumerate(np.flatnonzero(foreign)):
        if k % 4 == 3:
            values = rng.permutation(images[i].reshape(-1, *images.shape[3:])).reshape(images.shape[1:])
        else:
            part = other_part(others[k % len(others)], shape, rng)
            values = (peak * part).astype(images.dtype).reshape(*shape, *(1,) * (images.ndim - 3))
        images[i] = values
    return images, foreign


def other_part(picture: Matrices, shape: tuple[int, int], rng: np.random.Generator) -> Matrices:
    """Some part of a picture, repeated where it is too small."""
    picture = np.pad(
        picture, [(0, max(0, size - have)) for size, have in zip(shape, picture.shape, strict=True)], "wrap"
    )
    y, x = (int(rng.integers(0, have - size + 1)) for size, have in zip(shape, picture.shape, strict=True))
    return picture[y : y + shape[0], x : x + shape[1]]


def really_aligned(truth: Truth, seed: int) -> Iterator[Case]:
    """What methods really find from a rough start: right or wrong is what the truth says, in between does not count."""
    start = truth.jitter(ROUGH, seed) @ truth.right
    stack = truth.started(start)
    before, near = truth.error(start), NEAR[truth.group]
    for method, motion in (("lsc", "translation"), ("lsc", "homography"), ("joint", "auto")):
        model = METHODS[method](motion=motion, random_state=0).fit(stack)
        after = truth.error(np.asarray(model.transforms_.matrices))
        verdicts = FINE if after < near and after < before / 2 else WRONG if after > 0.9 * before else ()
        name = f"{truth.name}, {motion}, error {before:.1%} → {after:.1%}"
        if verdicts:
            quality = f"what {method} found, {'right' if verdicts is FINE else 'wrong'}"
            yield Case(truth.group, quality, name, stack, model.stack_from_frame_, verdicts)


def two_photographs() -> Iterator[Case]:
    """Half of one photograph, half of another, each in its right pose."""
    made = [truth for truth in truths() if truth.group == "photographs"]
    for a, b in zip(made, made[1:] + made[:1], strict=True):
        grey = [t.images if t.images.ndim == 3 else t.images.mean(-1).astype(t.images.dtype) for t in (a, b)]
        right = np.concatenate([a.right[:10], b.right[10:]])
        both = Truth(
            "photographs", f"{a.name} and {b.name}", np.concatenate([grey[0][:10], grey[1][10:]]), right, a.size
        )
        stack = both.started(both.jitter(ROUGH, 3) @ right)
        yield Case(both.group, "two kinds", both.name, stack, poses(stack, right), ("mixed",))


# ---- what methods make of it


def digit(number: int, n: int = 50, skip: int = 0) -> NDArray[np.uint8]:
    """Images of MNIST."""
    first = SKIPPED + skip
    return open_images(f"mnist:{number}").batch(np.arange(first, first + n))[..., 0]


def aligned(
    group: str, quality: str, name: str, images: NDArray[Any], verdicts: tuple[str, ...], foreign: Truths | None = None
) -> Iterator[Case]:
    """What methods really do."""
    stack = prepare(open_images(images), size=64)
    for method, cls in METHODS.items():
        found = cls(random_state=0).fit(images).stack_from_frame_
        yield Case(group, quality, f"{name}, {method}", stack, found, verdicts, foreign)


def spoilt_digits(number: int) -> Iterator[Case]:
    """Every quality of one digit; alignments by methods stand for right ones."""
    images, name = digit(number), f"digit {number}"
    yield from aligned("digits", "right", name, images, FINE, np.zeros(len(images), dtype=bool))
    truth = Truth("digits", name, images, np.asarray(LSC(random_state=0).fit(images).transforms_.matrices), (28, 28))
    begun = truth.started(truth.right)
    for quality, matrices, verdicts in (
        ("aligned already", np.eye(3), FINE),
        ("aligned, then spoilt", truth.jitter(SPOILT, number), ("worse", "failed")),
        ("shrunk", about_centre((28, 28), 0.7 * np.eye(2)), ("shrunk",)),
        ("zoomed", about_centre((28, 28), 1.4 * np.eye(2)), ("zoomed",)),
        ("emptied", np.array([[1, 0, 18.0], [0, 1, 0], [0, 0, 1]]), WRONG),
    ):
        yield Case("digits", quality, name, begun, poses(begun, matrices @ truth.right), verdicts)
    turned = images.copy()
    turned[::2] = np.rot90(images[::2], axes=(1, 2))
    if number > 1:  # a turned 0 is a 0, and a turned 1 is turned back
        plainly = aligned("digits", "right", name, images, FINE)
        for case, plain in zip(aligned("digits", "half turned by 90°", name, turned, ("mixed",)), plainly, strict=True):
            back = alike(case) > TURNED_BACK * alike(plain)
            yield replace(case, quality="half turned by 90°, and turned back", verdicts=FINE) if back else case
    if number in LOOKS_ANOTHER_IN_A_MIRROR:
        turned[::2] = images[::2, :, ::-1]
        yield from aligned("digits", "half mirrored", name, turned, ("mixed",))
    others = [other for other in range(10) if other != number]
    for share, verdicts in ((0.1, (*FINE, "mixed")), (0.3, ("mixed",))):
        foreign = np.arange(len(images)) >= round((1 - share) * len(images))
        strange = images.copy()
        strange[foreign] = [digit(others[k % 9], 1, 300 + k)[0] for k in range(foreign.sum())]
        yield from aligned("digits", f"{share:.0%} foreign", name, strange, verdicts, foreign)


def alike(case: Case) -> float:
    """The likeness that an alignment reached."""
    return measure(case.stack, case.found, case.stack.kind).quality.likeness_after


def several_digits() -> Iterator[Case]:
    """Two digits, and all ten."""
    for a, b in PAIRS:
        both = np.concatenate([digit(a, 25), digit(b, 25)])
        yield from aligned("digits", "two kinds", f"digits {a} and {b}", both, ("mixed",))
    everything = np.concatenate([digit(number, 6) for number in range(10)])
    yield from aligned("digits", "two kinds", "all digits", everything, ("mixed",))


def nothing_in_common() -> Iterator[Case]:
    """Noise, blobs and textures, and what methods make of them. What is on black ground looks like objects."""
    rng = np.random.default_rng(0)
    for side, n in ((28, 60), (64, 40), (96, 25)):
        yield from aligned("nothing", "noise", f"{side}²", (255 * rng.random((n, side, side))).astype(np.uint8), WRONG)
    for sigma in (1.5, 3, 5):
        smooth = gaussian_filter(rng.standard_normal((40, 64, 64)), (0, sigma, sigma))
        grey = np.clip(127 + 50 * smooth / smooth.std(), 0, 255).astype(np.uint8)
        yield from aligned("nothing", "blobs", f"sigma {sigma}", grey, WRONG)
        black = np.clip(120 * (smooth / smooth.std() - 1), 0, 255).astype(np.uint8)
        yield from aligned("nothing", "blobs on black ground", f"sigma {sigma}", black, WRONG)
    for name in ("grass", "gravel", "brick"):
        picture = photograph(name).mean(-1)
        parts = np.stack([255 * other_part(picture, (96, 96), rng) for _ in range(40)]).astype(np.uint8)
        yield from aligned("nothing", "textures", name, parts, WRONG)


def identical() -> Iterator[Case]:
    """One image many times, left alone and aligned."""
    for group, name, image in (
        ("digits", "one digit", digit(4, 1)[0]),
        ("photographs", "one photograph", (255 * photograph("coffee")[:256, :256]).astype(np.uint8)),
        ("stacks", "one frame, 16 bits", (20_000 * photograph("moon")[:200, :200, 0]).astype(np.uint16)),
    ):
        images = np.repeat(image[None], 12, axis=0)
        stack = prepare(open_images(images), size=64)
        yield Case(group, "identical images", name, stack, stack.start.astype(np.float32), FINE)
        yield from aligned(group, "identical images", name, images, FINE)


def cases(quick: bool = False) -> Iterator[Case]:
    """All of them; quick: one set of each kind."""
    some = truths()[:: len(PHOTOGRAPHS) if quick else 1]
    for seed, truth in enumerate(some):
        yield from spoilt_truths(truth, seed)
        yield from really_aligned(truth, seed)
    for number in DIGITS[:1] if quick else DIGITS:
        yield from spoilt_digits(number)
    for more in (two_photographs, several_digits, nothing_in_common, identical):
        yield from more()
