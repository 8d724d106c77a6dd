"""Numbers that say how well a set is aligned, and whether the alignment cheated.

Conventions, once for the whole file:

* Free functions take pixel values on the 0–255 scale. `QualityMeter` takes images in [0, 1], as a `Stack` gives them,
  and scales by 255 itself. Images are NumPy arrays or torch tensors, image index first; sums are float64.
* *Ink* is the sum of an image's pixel values.
* Sizes are (height, width); matrices are (N, 3, 3), each function names the direction it wants. Rows with NaN (skipped
  images) are left out of means.

APSNR alone rewards cheating: shrinking the object or pushing it out of the frame raises it without bound. `Quality`
therefore carries energy ratio, scale, blank and out-of-frame shares beside it, and calls a collapse a collapse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.geometry import matrix

Array = NDArray[Any]
Size = tuple[int, int]  # (height, width)

BLANK_BELOW = 0.02
"""An image with less than this share of the median ink is blank."""

_CHUNK_VALUES = 1 << 16  # float64 values worked on at a time: half a megabyte stays in the second-level cache
_HISTOGRAM_BYTES = 64 << 20
_SAMPLE_IMAGES, _SAMPLE_BYTES = 2000, 256 << 20


def as_numpy(values: Any) -> Array:
    """A NumPy view of an array or torch tensor (on any device, with or without gradient)."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


# ---- streaming mean and variance


class RunningStats:
    """Mean and population variance of a stream of arrays, in float64, mergeable (Welford; Chan for batches).

    Each batch is summed relative to its own first image, which keeps large offsets from cancelling. With `weights`
    (masks, broadcast against the batch) each pixel has its own total weight; the mean is 0 where that is 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self._weight: Array | float = 0.0  # per pixel only once weights were given
        self._mean: Array | None = None
        self._squares: Array = np.zeros(())  # Σ w (x − mean)²

    def update(self, batch: Any, weights: Any = None) -> RunningStats:
        """Take in a batch (B, …)."""
        images = as_numpy(batch)
        if images.ndim == 0 or (self._mean is not None and images.shape[1:] != self._mean.shape):
            known = "" if self._mean is None else f" of {self._mean.shape}"
            raise CongealError(f"statistics need batches (B, …){known}, not an array of shape {images.shape}")
        if len(images) == 0:
            return self
        weight, mean, squares = _batch_moments(images, None if weights is None else as_numpy(weights))
        self._merge(len(images), weight, mean, squares)
        return self

    def merge(self, other: RunningStats) -> RunningStats:
        """Take in all that `other` has seen."""
        if other._mean is not None:
            if self._mean is not None and self._mean.shape != other._mean.shape:
                raise CongealError(f"cannot merge statistics of {self._mean.shape} and {other._mean.shape}")
            self._merge(other.count, other._weight, other._mean, other._squares)
        return self

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name; `restore` goes on from there as if nothing had happened."""
        if self._mean is None:
            return {}
        parts = {"weight": self._weight, "mean": self._mean, "squares": self._squares}
        return {"count": np.array(self.count), **{name: np.asarray(part) for name, part in parts.items()}}

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> RunningStats:
        """The inverse of `state`."""
        stats = cls()
        if state:
            weight = state["weight"]
            stats.count, stats._weight = int(state["count"]), weight if weight.ndim else float(weight)
            stats._mean, stats._squares = state["mean"], state["squares"]
        return stats

    def _merge(self, count: int, weight: Array | float, mean: Array, squares: Array) -> None:
        self.count += count
        if self._mean is None:
            self._weight, self._mean, self._squares = weight, mean.copy(), squares.copy()
            return
        total = self._weight + weight
        share = np.divide(weight, total, out=np.zeros(np.shape(total)), where=np.asarray(total) > 0)
        delta = mean - self._mean
        self._mean = self._mean + delta * share
        self._squares = self._squares + squares + delta * delta * (self._weight * share)
        self._weight = total

    @property
    def mean(self) -> Array:
        if self._mean is None:
            raise CongealError("there is no mean of no images")
        return self._mean

    @property
    def variance(self) -> Array:
        """Population variance per pixel, 0 where nothing was seen."""
        shape = self.mean.shape
        weight = np.broadcast_to(self._weight, shape)
        return np.divide(self._squares, weight, out=np.zeros(shape), where=weight > 0)

    @property
    def mse(self) -> float:
        """Mean squared distance to the mean over all pixels of all images, each as much as it weighs."""
        total = float(np.broadcast_to(self._weight, self.mean.shape).sum())
        return float(self._squares.sum()) / total if total > 0 else float("nan")


def _batch_moments(images: Array, weights: Array | None) -> tuple[Array | float, Array, Array]:
    """Total weight, mean and Σ w (x − mean)² of one batch."""
    shape = images.shape[1:]
    flat = images.reshape(len(images), -1)
    origin = flat[0].astype(np.float64)
    first, second = np.zeros_like(origin), np.zeros_like(origin)
    rows = max(1, _CHUNK_VALUES // max(1, flat.shape[1]))
    shifted = np.empty((min(rows, len(flat)), flat.shape[1]))
    if weights is None:
        for start in range(0, len(flat), rows):
            part = flat[start : start + rows]
            chunk = np.subtract(part, origin, out=shifted[: len(part)])
            first += chunk.sum(0)
            second += np.multiply(chunk, chunk, out=chunk).sum(0)
        total: Array | float = float(len(flat))
        offset = first / total
        squares = second - first * offset
    else:
        heavy = np.broadcast_to(weights, images.shape)
        seen = np.zeros_like(origin)
        for start in range(0, len(flat), rows):
            part = flat[start : start + rows]
            w = heavy[start : start + rows].reshape(part.shape).astype(np.float64)
            chunk = np.subtract(part, origin, out=shifted[: len(part)])
            weighted = w * chunk
            seen += w.sum(0)
            first += weighted.sum(0)
            second += np.multiply(weighted, chunk, out=weighted).sum(0)
        offset = np.divide(first, seen, out=np.zeros_like(first), where=seen > 0)
        squares = second - first * offset
        origin = np.where(seen > 0, origin, 0)
        total = seen.reshape(shape)
    return total, (origin + offset).reshape(shape), np.maximum(squares, 0).reshape(shape)


# ---- APSNR


def apsnr(images: Any) -> float:
    """Alignment peak signal-to-noise ratio in dB, the paper's formula: 10 log₁₀(255² / MSE to the mean image).

    Infinite for identical images.
    """
    return _decibel(RunningStats().update(images).mse)


def apsnr_from_variance(variance: Any) -> float:
    """APSNR from the per-pixel population variance (0–255 scale): its mean over pixels is the formula's MSE."""
    return _decibel(float(np.mean(as_numpy(variance), dtype=np.float64)))


def _decibel(mse: float) -> float:
    if mse == 0:
        return float("inf")
    return float(10 * np.log10(255.0**2 / mse))


def apsnr_uint8_wrap(images: Any, mean: Any = None) -> float:
    """APSNR as it comes out when differences and squares are taken in wrapping uint8 arithmetic.

    Not a quality measure: it imitates a plausible accident that lands in the range of the paper's printed values (raw
    MNIST about 31.4). Stands beside `apsnr` only for comparison with that table. `mean` defaults to that of `images`.
    """
    values = as_numpy(images)
    total = uint8_wrap_squares(values, RunningStats().update(values).mean if mean is None else mean)
    return _decibel(total / values.size)


def uint8_wrap_squares(images: Any, mean: Any) -> float:
    """Sum over a batch of squared differences to the rounded mean, in wrapping uint8: the above for streams."""
    reference, batch, total = _to_uint8(as_numpy(mean)), as_numpy(images), 0
    rows = max(1, _CHUNK_VALUES // max(1, reference.size))
    for start in range(0, len(batch), rows):
        difference = _to_uint8(batch[start : start + rows]) - reference
        total += int((difference * difference).sum(dtype=np.int64))
    return float(total)


def _to_uint8(values: Array) -> NDArray[np.uint8]:
    return values if values.dtype == np.uint8 else np.clip(np.rint(values), 0, 255).astype(np.uint8)


class _WrapMeter:
    """`apsnr_uint8_wrap` in one pass, before the mean is known.

    Keeps a 256-bin histogram per pixel while that fits in 64 MB (exact), otherwise the first images: at most 2,000 and
    256 MB of them.
    """

    def __init__(self) -> None:
        self._histogram: NDArray[np.int64] | None = None
        self._sample: list[NDArray[np.uint8]] = []
        self._room = 0

    def update(self, images: Array) -> None:
        flat = _to_uint8(images).reshape(len(images), -1)
        pixels = flat.shape[1]
        if pixels * 256 * 8 <= _HISTOGRAM_BYTES:
            # pixel by pixel, so that the bins being counted stay in the cache
            bins = np.ascontiguousarray(flat.T) + np.arange(0, pixels * 256, 256, dtype=np.int64)[:, None]
            counts = np.bincount(bins.ravel(), minlength=pixels * 256)
            self._histogram = counts if self._histogram is None else self._histogram + counts
            return
        if not self._sample:
            self._room = min(_SAMPLE_IMAGES, _SAMPLE_BYTES // pixels)
        if self._room > 0 or not self._sample:
            self._sample.append(flat[: max(1, self._room)].copy())
            self._room -= len(self._sample[-1])

    def apsnr(self, mean: Array) -> float:
        reference = _to_uint8(mean).ravel()
        if self._histogram is None:
            return apsnr_uint8_wrap(np.concatenate(self._sample), reference)
        level = np.arange(256, dtype=np.uint8)
        difference = level[None] - reference[:, None]
        counts = self._histogram.reshape(-1, 256)
        return _decibel(float((counts * (difference * difference)).sum()) / float(counts.sum()))


# ---- did it cheat?


def ink(images: Any) -> NDArray[np.float64]:
    """Sum of pixel values of each image: (N, …) → (N,)."""
    values = as_numpy(images)
    return values.reshape(len(values), -1).sum(1, dtype=np.float64)


def energy_ratio(aligned_ink: Any, source_ink: Any) -> float:
    """Ink of all aligned images over ink of all source images; 1 is right. NaN when the source has none."""
    source = float(np.sum(as_numpy(source_ink), dtype=np.float64))
    return float(np.sum(as_numpy(aligned_ink), dtype=np.float64)) / source if source > 0 else float("nan")


def blank(image_ink: Any, median: float | None = None) -> NDArray[np.bool_]:
    """(N,) True for images with less than 2% of the median ink (their own median unless given)."""
    values = as_numpy(image_ink)
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    return values <= BLANK_BELOW * (float(np.median(values)) if median is None else median)


def mean_scale(matrices: Any, size: Size | None = None, start: Any = None) -> float:
    """Mean of |det J|^½ of `aligned_from_source`: above 1 means that the object was enlarged.

    The mean is geometric: scales multiply, and one image gone wild must not hide what all the others do.
    J is the 2×2 Jacobian at the centre of the aligned frame of `size`; affine matrices have the same one everywhere and
    need no size. With `start`, the matrices (3,3) or (N,3,3) the alignment began with, each scale is relative to the
    initial gauge.
    """
    return geometric_mean(scales(matrices, size, start))


def scales(matrices: Any, size: Size | None = None, start: Any = None) -> NDArray[np.float64]:
    """(N,) the scale of each image, of which `mean_scale` is the mean."""
    scale = _scale(as_numpy(matrices), size)
    return scale if start is None else scale / _scale(as_numpy(start), size)


def geometric_mean(values: NDArray[np.float64]) -> float:
    """Of those that are finite and positive; NaN if there are none."""
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.exp(np.log(known).mean())) if known.size else float("nan")


def _scale(matrices: Array, size: Size | None) -> NDArray[np.float64]:
    m = matrices.astype(np.float64).reshape(-1, 3, 3)
    known = m[np.isfinite(m).all(axis=(1, 2))]
    if size is None and known[:, 2, :2].any():
        raise CongealError("the scale of a homography differs from place to place: give the size of the aligned frame")
    height, width = size or (1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        back = matrix.invert(m)
        depth = back[:, 2] @ np.array([(width - 1) / 2, (height - 1) / 2, 1.0])
        return np.sqrt(np.abs(depth**3 / _determinant(back)))


def _determinant(m: Array) -> Array:
    return np.einsum("ni,ni->n", m[:, 0], np.cross(m[:, 1], m[:, 2]))


def out_of_frame(source_from_aligned: Any, source_sizes: Any, size: Size) -> NDArray[np.float64]:
    """(N,) share of each aligned frame of `size` that lies outside its source image.

    Direction: `source_from_aligned` (N,3,3), the one images are sampled with. source_sizes is (2,) or (N,2). Counted at
    up to 32×32 evenly spaced points; points behind the horizon of a homography count as outside.
    """
    m = as_numpy(source_from_aligned).astype(np.float64).reshape(-1, 3, 3)
    extent = np.broadcast_to(as_numpy(source_sizes).astype(np.float64), (len(m), 2))
    ys, xs = (((np.arange(k) + 0.5) * side / k - 0.5) for side, k in ((s, min(s, 32)) for s in size))
    grid = np.stack([*(axis.ravel() for axis in np.meshgrid(xs, ys)), np.ones(len(xs) * len(ys))])
    centre = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2, 1.0])
    share = np.empty(len(m))
    for start in range(0, len(m), 1024):
        part = m[start : start + 1024]
        limit = extent[start : start + 1024, :, None]
        x, y, depth = np.moveaxis(part @ grid, 1, 0)
        ahead = np.sign(part[:, 2] @ centre)[:, None]
        x, y, depth = x * ahead, y * ahead, depth * ahead
        # multiplied out, so that nothing is divided by a depth of 0
        inside = (depth > 0) & (x >= -0.5 * depth) & (x <= (limit[:, 1] - 0.5) * depth)
        inside &= (y >= -0.5 * depth) & (y <= (limit[:, 0] - 0.5) * depth)
        share[start : start + 1024] = 1 - inside.mean(1)
    return np.where(np.isfinite(m).all(axis=(1, 2)), share, np.nan)


def looks_like_objects(images: Any, masks: Any = None) -> str:
    """Kind of set: "object" on empty dark ground, where ink is a quantity to keep, or "photo", everything else.

    images (N,H,W) or (N,C,H,W). Object: at least 75% of the border pixels and 40% of all pixels are darker than a tenth
    of the brightest value. `masks`, same shape up to broadcasting, exclude what is padding.
    """
    values = as_numpy(images)
    valid = np.ones(values.shape, dtype=bool) if masks is None else np.broadcast_to(as_numpy(masks) > 0.5, values.shape)
    if values.ndim < 3 or not valid.any():
        return "photo"
    dark = values <= 0.1 * float(np.quantile(values[valid], 0.999))
    border = np.zeros(values.shape[-2:], dtype=bool)
    border[[0, -1]], border[:, [0, -1]] = True, True
    edge = valid & border
    if not edge.any():
        return "photo"
    return "object" if dark[edge].mean() >= 0.75 and dark[valid].mean() >= 0.4 else "photo"


# ---- the verdict

_ADVICE = {
    "good": "The images line up better than before and the object kept its size.",
    "unchanged": "The alignment changed next to nothing: try a richer motion, another reference or another method.",
    "worse": "The images line up worse than before: try a simpler motion, another reference or another method.",
    "shrunk": "The object was shrunk, which flatters APSNR: try a simpler motion or another reference.",
    "grown": "The object was enlarged beyond its source: try a simpler motion or another reference.",
    "emptied": "The object was pushed out of the frame, which flatters APSNR: try a simpler motion or a better start.",
    "failed": "There is nothing to measure: no image has finite, visible content.",
}


@dataclasses.dataclass(frozen=True)
class Quality:
    """What `metrics.json` says about an alignment. dB for APSNR; shares and ratios as fractions of 1."""

    n_images: int
    apsnr_before: float
    apsnr_after: float
    apsnr_uint8_wrap_before: float
    apsnr_uint8_wrap_after: float
    energy_ratio: float
    mean_scale: float
    blank_share: float
    out_of_frame_share: float
    kind: str
    collapsed: bool
    verdict: str
    advice: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which knows neither NaN nor infinity: both become None."""
        values = dataclasses.asdict(self)
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}


def judge(
    kind: str,
    *,
    apsnr_before: float,
    apsnr_after: float,
    energy_ratio: float,
    mean_scale: float,
    out_of_frame_rise: float,
) -> tuple[str, bool]:
    """Verdict in one word (a key of the advice above) and whether it is a collapse.

    Objects collapse when the energy ratio leaves 0.9–1.1 (below 0.5 they are "emptied"). Photographs, where ink means
    nothing, collapse when the mean scale leaves 0.85–1.15 of the initial gauge or the mean out-of-frame share rises by
    more than 0.25. A number that is not finite is a collapse too.
    """
    amount, low, high = (energy_ratio, 0.9, 1.1) if kind == "object" else (mean_scale, 0.85, 1.15)
    if not np.isfinite(amount) or np.isnan(apsnr_after):
        return "failed", True
    if kind == "object" and amount < 0.5:
        return "emptied", True
    if amount < low:
        return "shrunk", True
    if amount > high:
        return "grown", True
    if kind != "object" and out_of_frame_rise > 0.25:
        return "emptied", True
    if apsnr_after == apsnr_before or abs(apsnr_after - apsnr_before) < 0.05:
        return "unchanged", False
    return ("good" if apsnr_after > apsnr_before else "worse"), False


class QualityMeter:
    """`Quality` in one pass over batches of [0, 1] images.

    kind is "object" or "photo"; None decides it from the first 1,000 source images. aligned_area is the number of
    aligned pixels per source pixel in the initial gauge (1 when both have one resolution), so that ink is compared at
    one resolution. `before` and `after` hold the streaming mean and variance on the 0–255 scale. The uint8-wrap value
    is exact for small frames and taken on the first 2,000 images (256 MB at most) otherwise; it ignores masks.
    """

    def __init__(self, kind: str | None = None, aligned_area: float = 1.0) -> None:
        self.before, self.after = RunningStats(), RunningStats()
        self._wrap_before, self._wrap_after = _WrapMeter(), _WrapMeter()
        # Of each image in single precision, which is enough for a median; sums are exact.
        self._aligned_ink: list[NDArray[np.float32]] = []
        self._source_ink: list[NDArray[np.float32]] = []
        self._aligned_total = self._source_total = 0.0
        self._area = aligned_area
        self._kind = kind
        self._votes: list[tuple[str, int]] = []

    def update_before(self, images: Any, masks: Any = None) -> None:
        """Images (B,C,h,w) as the start shows them in the frame; masks weight mean and variance."""
        values = _scaled(images)
        self.before.update(values, masks)
        self._wrap_before.update(values)

    def update_after(self, images: Any, source_images: Any, masks: Any = None, source_masks: Any = None) -> None:
        """Aligned images (B,C,h,w), and the same images before any warp, the initial one included."""
        values = _scaled(images)
        self.after.update(values, masks)
        self._wrap_after.update(values)
        aligned, source = ink(values) / self._area, ink(source_images) * 255
        self._aligned_ink.append(aligned.astype(np.float32))
        self._source_ink.append(source.astype(np.float32))
        self._aligned_total += float(aligned.sum())
        self._source_total += float(source.sum())
        if self._kind is None and sum(n for _, n in self._votes) < 1000 and len(values):
            self._votes.append((looks_like_objects(source_images, source_masks), len(values)))

    @property
    def kind(self) -> str:
        if self._kind is not None:
            return self._kind
        objects = sum(n for kind, n in self._votes if kind == "object")
        return "object" if 2 * objects > sum(n for _, n in self._votes) else "photo"

    def finish(self, *, mean_scale: float, out_of_frame: Any, out_of_frame_before: Any = 0.0) -> Quality:
        """The result. mean_scale relative to the initial gauge; out-of-frame shares per image or already averaged."""
        n = self.after.count
        outside, outside_before = _known_mean(out_of_frame), _known_mean(out_of_frame_before)
        ratio = energy_ratio(self._aligned_total, self._source_total)
        median = float(np.median(np.concatenate(self._source_ink))) if n else 0.0
        empty = sum(int(blank(part, median).sum()) for part in self._aligned_ink) / n if n else 1.0
        before = _decibel(self.before.mse) if self.before.count else float("nan")
        after = _decibel(self.after.mse) if n else float("nan")
        verdict, collapsed = judge(
            self.kind,
            apsnr_before=before,
            apsnr_after=after,
            energy_ratio=ratio,
            mean_scale=mean_scale,
            out_of_frame_rise=outside - outside_before,
        )
        return Quality(
            n_images=n,
            apsnr_before=before,
            apsnr_after=after,
            apsnr_uint8_wrap_before=self._wrap_before.apsnr(self.before.mean) if self.before.count else float("nan"),
            apsnr_uint8_wrap_after=self._wrap_after.apsnr(self.after.mean) if n else float("nan"),
            energy_ratio=ratio,
            mean_scale=float(mean_scale),
            blank_share=empty,
            out_of_frame_share=outside,
            kind=self.kind,
            collapsed=collapsed,
            verdict=verdict,
            advice=_ADVICE[verdict],
        )


def _scaled(images: Any) -> Array:
    return np.multiply(as_numpy(images), 255)


def _known_mean(values: Any) -> float:
    array = as_numpy(values)
    return float(np.nanmean(array)) if np.isfinite(array).any() else float("nan")


# ---- against a known answer


def corner_error(found: Any, truth: Any, size: Size) -> NDArray[np.float64]:
    """(N,) mean distance, in pixels of the true frame, between where four corners are and where they should be.

    found and truth are both `aligned_from_source` (N,3,3); `size` is the size of the true frame. Alignment has no
    preferred pose, so ONE homography G = found_from_true is removed first, the same for all images: least squares over
    all corners, re-weighted (Huber) so that a few lost images do not bend it, starting at the median corners. Errors
    are measured after mapping back through G, so shrinking everything does not make them smaller.
    """
    a, t = (as_numpy(m).astype(np.float64).reshape(-1, 3, 3) for m in (found, truth))
    if len(a) != len(t):
        raise CongealError(f"corner error compares as many matrices as there are true ones: {len(a)} against {len(t)}")
    errors = np.full(len(a), np.nan)
    known = np.isfinite(a).all(axis=(1, 2)) & np.isfinite(t).all(axis=(1, 2))
    if not known.any():
        return errors
    frame = matrix.corners(size)
    found_from_true = matrix.compose(a[known], matrix.invert(t[known]))
    landed = matrix.map_points(found_from_true, frame)
    gauge = matrix.homography_from_points(frame, np.median(landed, axis=0))
    for _ in range(20):
        seen = matrix.map_points(matrix.invert(gauge)[None], landed)
        distance = np.linalg.norm(seen - frame, axis=-1).mean(-1)
        limit = 2 * float(np.median(distance)) + 1e-12
        weight = 1 / np.maximum(distance / limit, 1)
        centre = (weight[:, None, None] * seen).sum(0) / weight.sum()
        gauge = matrix.normalise(gauge @ matrix.homography_from_points(frame, centre))
        if np.abs(centre - frame).max() < 1e-9:
            break
    seen = matrix.map_points(matrix.invert(gauge)[None], landed)
    errors[known] = np.linalg.norm(seen - frame, axis=-1).mean(-1)
    return errors


def landmark_error(points: Any, left_eye: int = 0, right_eye: int = 1) -> dict[str, Any]:
    """Spread of landmarks in the aligned frame, in % of the distance between the two mean outer eye corners.

    points (N,P,2) are every image's landmarks mapped into the aligned frame; left_eye and right_eye are indices into P.
    Per landmark: mean over images of the distance to the landmark's centroid. Gives "mean" over images and landmarks,
    "median", "per_landmark" (P,), "per_image" (N,) and "eye_distance" in pixels. Images with NaN points are left out.
    """
    xy = as_numpy(points).astype(np.float64)
    if xy.ndim != 3 or xy.shape[-1] != 2:
        raise CongealError(f"landmarks must be (images, landmarks, 2), not {xy.shape}")
    known = np.isfinite(xy).all(axis=(1, 2))
    if not known.any():
        raise CongealError("no image has landmarks")
    centroid = xy[known].mean(0)
    eyes = float(np.linalg.norm(centroid[left_eye] - centroid[right_eye]))
    if eyes == 0:
        raise CongealError("the mean eye corners fall on one point, so there is no distance to measure by")
    percent = 100 * np.linalg.norm(xy - centroid, axis=-1) / eyes
    return {
        "mean": float(percent[known].mean()),
        "median": float(np.median(percent[known])),
        "per_landmark": percent[known].mean(0),
        "per_image": percent.mean(1),
        "eye_distance": eyes,
    }


def score_against_mean(images: Any, mean: Any, weights: Any = None) -> NDArray[np.float64]:
    """(N,) normalised correlation of each image (N, …) with the mean image, in −1…1; 0 for a flat image.

    weights (masks) broadcast against the images; averages are then taken over the weighted pixels of each image.
    """
    x = as_numpy(images).astype(np.float64)
    x, r = x.reshape(len(x), -1), as_numpy(mean).astype(np.float64).ravel()[None]
    w = np.ones((1, 1)) if weights is None else np.broadcast_to(as_numpy(weights), as_numpy(images).shape)
    w = np.broadcast_to(w.reshape(len(w), -1).astype(np.float64), x.shape)
    total = np.maximum(w.sum(1, keepdims=True), 1e-300)
    x = x - (w * x).sum(1, keepdims=True) / total
    r = r - (w * r).sum(1, keepdims=True) / total
    norm = np.sqrt((w * x * x).sum(1) * (w * r * r).sum(1))
    return np.divide((w * x * r).sum(1), norm, out=np.zeros(len(x)), where=norm > 1e-12)
