"""The gauge: the pose that all images of a set share.

No cost determines the common translation, rotation and scale of a set. Without a gauge most costs shrink the object,
because smaller objects differ in fewer pixels.
"""

from __future__ import annotations

import numpy as np
import torch

from congeal.evaluation.thresholds import HELD_ENERGY, Band
from congeal.geometry import invert, mean_of_parts, normalise
from congeal.geometry.matrix import Size, corners, map_points
from congeal.geometry.orientation import MIRROR, mirrored, upright_from_source
from congeal.images import Stack
from congeal.memmap import allocate
from congeal.registration.batching import total_intensity
from congeal.rows import row_slices

ZOOM_STEP = 1.02
"""Largest factor by which the common scale changes at a time: the measured intensity lags by a step, so that larger
factors overshoot (digits)."""
MAX_COUNTED_MOTION_PX = 1e3
"""Largest corner motion of one image, in pixels, that counts towards convergence: beyond it the image is lost."""


def can_scale(motion: str) -> bool:
    """Whether a motion makes objects larger or smaller: only then may their ink be held by zooming."""
    return motion not in ("translation", "rigid")


class Gauge:
    """Keeps the mean transform of a set at that of its start, by one correction G that the motion itself contains.

    For objects on empty ground the total intensity (ink) determines the common scale better than the mean matrix. When
    the energy ratio leaves the band, the scale of the set is corrected step by step; `zoom` is the correction so far.

    start (N, 3, 3): initial poses, stack_from_frame. G is a member of `motion`: taking out the mean of many rotations
    must not leave a change of scale. source_ink: total intensity of the sources in frame pixels; None for photographs
    and motions without scale. zoom: the correction so far, from a checkpoint. band: energy ratios that need none.
    """

    def __init__(
        self,
        start: torch.Tensor,
        frame: Size,
        motion: str,
        source_ink: float | None = None,
        zoom: float = 1.0,
        band: Band = HELD_ENERGY,
    ) -> None:
        self.frame, self.motion, self.zoom, self.band = frame, motion, zoom, band
        self.source_ink = source_ink if can_scale(motion) else None
        self._wanted = _mean(start, frame)

    @classmethod
    def of_stack(
        cls,
        stack: Stack,
        motion: str,
        *,
        keeps_intensity: bool,
        zoom: float = 1.0,
        band: Band = HELD_ENERGY,
        rows: np.ndarray | None = None,
    ) -> Gauge:
        """The gauge of a stack's images, or of some `rows`. keeps_intensity: whether the total intensity is held."""
        start = torch.as_tensor(stack.start if rows is None else stack.start[rows])
        ink = total_intensity(stack, rows) if keeps_intensity and can_scale(motion) else None
        return cls(start, stack.frame, motion, ink, zoom, band)

    def energy(self, ink: float) -> float | None:
        """The energy ratio at this ink; None where it means nothing."""
        return ink / self.source_ink if self.source_ink else None

    def follow_intensity(self, ink: float, step: float = ZOOM_STEP) -> None:
        """Bring the zoom nearer to where the energy ratio is in its band, by at most a factor of `step`.

        ink: what the set shows now, in frame pixels.
        """
        energy = self.energy(ink)
        if energy is not None and not self.band[0] <= energy <= self.band[1]:
            # Ink grows with area: a frame that looks at a smaller region shows the object larger.
            wanted = np.sqrt(energy / np.clip(energy, *self.band))
            self.zoom *= float(np.clip(wanted, 1 / step, step))

    def correction(self, stack_from_frame: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """G (3, 3) float64, by which every stack_from_frame is to be multiplied from the right.

        keep (N,) bool: whose mean counts, where some transforms are known to be wrong.
        """
        counted = stack_from_frame if keep is None else stack_from_frame[keep]
        found = _mean(counted, self.frame)
        x, y = (1 - self.zoom) * (self.frame[1] - 1) / 2, (1 - self.zoom) * (self.frame[0] - 1) / 2
        # Above 1 the frame looks at a larger region, about its centre.
        zoom = torch.tensor([[self.zoom, 0, x], [0, self.zoom, y], [0, 0, 1]], dtype=torch.float64)
        common = torch.linalg.inv(found) @ self._wanted @ zoom
        return within_motion(common[None], self.motion, self.frame)[0]

    def fix(
        self, stack_from_frame: torch.Tensor, ink: float | None = None, keep: torch.Tensor | None = None
    ) -> torch.Tensor:
        """All poses times G: the mean is that of the start again, and the ink a step nearer to its band."""
        if ink is not None:
            self.follow_intensity(ink)
        common = self.correction(stack_from_frame, keep)
        fixed = torch.from_numpy(allocate(tuple(stack_from_frame.shape), stack_from_frame.detach().numpy().dtype))
        for part in row_slices(len(fixed)):
            fixed[part] = normalise(stack_from_frame[part].double() @ common).to(fixed.dtype)
        return fixed


def _mean(stack_from_frame: torch.Tensor, frame: Size) -> torch.Tensor:
    """The mean transform in float64; of a million images never all at once."""
    parts = (stack_from_frame[part].double() for part in row_slices(len(stack_from_frame)))
    return mean_of_parts(parts, frame)


def within_motion(matrices: torch.Tensor, motion: str, frame: Size) -> torch.Tensor:
    """The members of a motion nearest to warps of the frame (N, 3, 3), in pixels: the same at its centre.

    Translation keeps where the centre goes; rigid and similarity also how the centre's surroundings turn (and scale);
    affine their whole derivative; a homography is left as it is.
    """
    matrices = normalise(matrices)
    if motion == "homography":
        return matrices
    centre = matrices.new_tensor([(frame[1] - 1) / 2, (frame[0] - 1) / 2, 1.0])
    x, y, depth = (matrices @ centre).unbind(-1)
    target = torch.stack([x / depth, y / depth], -1)
    linear = (matrices[:, :2, :2] - target[:, :, None] * matrices[:, 2:, :2]) / depth[:, None, None]
    if motion == "translation":
        linear = torch.eye(2).to(matrices).expand(len(matrices), 2, 2)
    elif motion != "affine":
        cosine = (linear[:, 0, 0] + linear[:, 1, 1]) / 2
        sine = (linear[:, 1, 0] - linear[:, 0, 1]) / 2
        if motion == "rigid":
            length = torch.hypot(cosine, sine).clamp(min=1e-12)
            cosine, sine = cosine / length, sine / length
        linear = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    result = torch.eye(3).to(matrices).repeat(len(matrices), 1, 1)
    result[:, :2, :2] = linear
    result[:, :2, 2] = target - linear @ centre[:2]
    return result


def restricted(poses: torch.Tensor, start: torch.Tensor, motion: str, frame: Size) -> torch.Tensor:
    """Poses (N, 3, 3) nearest to these for which start⁻¹ · pose belongs to the motion, in float64."""
    if motion == "homography":
        return poses.double()
    begin, poses = start.double(), poses.double()
    # No motion mirrors: of a mirror image, what counts is what it does to the frame mirrored back.
    turned = torch.as_tensor(mirrored(poses.numpy()) != mirrored(begin.numpy()))[:, None, None]
    back = torch.where(turned, torch.as_tensor(upright_from_source(MIRROR, frame)), torch.eye(3))
    return normalise(begin @ within_motion(invert(begin) @ poses @ back, motion, frame) @ back)


def corner_motion(before: torch.Tensor, after: torch.Tensor, size: Size) -> torch.Tensor:
    """(N,) how far the farthest frame corner moved between two sets of stack_from_frame, in stack pixels."""
    frame = torch.as_tensor(corners(size), dtype=before.dtype)
    return (map_points(after, frame) - map_points(before, frame)).norm(dim=-1).amax(-1)


def mean_motion(before: torch.Tensor, after: torch.Tensor, size: Size) -> float:
    """The mean of `corner_motion`, by which a level ends; a lost image counts as `MAX_COUNTED_MOTION_PX`."""
    parts = (corner_motion(before[part], after[part], size) for part in row_slices(len(before)))
    means = [(len(part), float(part.clamp(max=MAX_COUNTED_MOTION_PX).mean())) for part in parts]
    return means[0][1] if len(means) == 1 else sum(n * mean for n, mean in means) / len(before)
