"""Feature maps of the images of a stack under their poses, the template of a set, and likeness by features.

Feature maps show a square window of the frame, the same for all images. Each image is sampled at the resolution of
the network, its features are computed once, and stored as their first principal components over the whole set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from congeal.execution.threads import map_ordered, single_torch_thread, usable_cores
from congeal.geometry import coverage, normalise, warp
from congeal.geometry.orientation import upright_from_source
from congeal.images import Stack
from congeal.methods.semantic.extractors import Extractor
from congeal.progress import Progress
from congeal.rows import evenly_spaced_rows

COMPONENTS = 64
"""Principal components stored per cell: two thirds of the variance, without loss of agreement of nearest neighbours."""
MIN_RELATIVE_AGREEMENT = 0.5
"""Share of the median agreement that an image needs to be part of a template (chosen by judgement)."""

Maps = tuple[torch.Tensor, np.ndarray]
"""Features (C, h, w) of a picture, and which cells (h·w,) are covered by the image."""


@dataclass(frozen=True)
class Window:
    """A square of the frame, by its centre (x, y) and half its side, in pixels of the frame."""

    x: float
    y: float
    half: float

    @classmethod
    def whole(cls, frame: tuple[int, int]) -> Window:
        """The smallest that holds the whole frame."""
        return cls((frame[1] - 1) / 2, (frame[0] - 1) / 2, max(frame) / 2)

    def frame_from_view(self, side: int) -> np.ndarray:
        """(3, 3) of a view of `side` pixels."""
        step = 2 * self.half / side
        first = 0.5 * step - self.half
        return np.array([[step, 0, self.x + first], [0, step, self.y + first], [0, 0, 1.0]])


@dataclass(frozen=True)
class FeatureBasis:
    """Principal components of a set's features: `directions` (C, K) of the features minus `centre` (C,)."""

    centre: torch.Tensor
    directions: torch.Tensor

    @classmethod
    def of(cls, found: Sequence[Maps]) -> FeatureBasis:
        """The principal components of the covered cells of some images."""
        rows = []
        for maps, seen in found:
            cells = maps.flatten(1).T[torch.from_numpy(seen)]
            rows.append(cells[:: max(1, len(cells) * len(found) // 40_000)])  # far more cells than channels
        values = torch.cat(rows)
        if len(values) < 2:
            values = torch.cat([values, torch.zeros(2, values.shape[1])])
        centre = values.mean(0)
        covariance = ((values - centre).T @ (values - centre)).double() / len(values)
        _, directions = torch.linalg.eigh(covariance)
        kept = directions.flip(1)[:, :COMPONENTS].float()
        sign = torch.sign(kept.gather(0, kept.abs().argmax(0, keepdim=True)))  # the sign of an eigenvector is arbitrary
        return cls(centre, kept * sign)

    def project(self, maps: torch.Tensor) -> torch.Tensor:
        """(C, h, w) → (h·w, K), each row normalised to length 1."""
        return functional.normalize((maps.flatten(1).T - self.centre) @ self.directions, dim=1)


@dataclass(frozen=True)
class FeatureMaps:
    """Feature maps of n images, each in several orientations.

    cells : (n, O, L, K) unit vectors, L = h·w cells row by row
    seen : (n, O, L) bool, which cells are covered by the image
    grid : (h, w)
    places : (L, 2) centres of the cells, in pixels of the view
    side : pixels along a view
    basis : the principal components
    """

    cells: np.ndarray
    seen: np.ndarray
    grid: tuple[int, int]
    places: np.ndarray
    side: int
    basis: FeatureBasis

    def of(self, image: int, way: int = 0) -> torch.Tensor:
        """(L, K) the cells of one image in its orientation number `way`."""
        return torch.from_numpy(self.cells[image, way].astype(np.float32))

    @property
    def view_from_cell(self) -> np.ndarray:
        """(3, 3): columns and rows of cells → pixels of the view."""
        first, step = self.places[0], self.places[-1] - self.places[0]
        x, y = (float(step[k]) / max(1, self.grid[1 - k] - 1) for k in (0, 1))
        return np.array([[x, 0, first[0]], [0, y, first[1]], [0, 0, 1]])

    @property
    def cell(self) -> float:
        """Pixels of the view along a cell."""
        return self.side / max(self.grid)

    def warped(self, image: int, way: int, view_from_common: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(L, K) the cells of one image warped to the common view, and (L,) the covered share of each.

        view_from_common (3, 3) is in pixels of the view.
        """
        view_from_cell = self.view_from_cell
        matrix = torch.from_numpy(np.linalg.inv(view_from_cell) @ view_from_common @ view_from_cell)[None].float()
        cells = self.of(image, way).T.reshape(1, -1, *self.grid)
        seen = torch.from_numpy(self.seen[image, way]).float().reshape(1, 1, *self.grid)
        both = warp(torch.cat([cells * seen, seen], 1), matrix, self.grid)[0].flatten(1)
        return both[:-1].T, both[-1]


def compute_feature_maps(
    stack: Stack,
    poses: np.ndarray,
    window: Window,
    extractor: Extractor,
    orientations: Sequence[int] = (0,),
    basis: FeatureBasis | None = None,
    *,
    quiet: bool = True,
) -> FeatureMaps:
    """Feature maps of every image of a stack under stack_from_frame poses (n, 3, 3), in each of the orientations.

    basis: that of an earlier set, for new images; None estimates one.
    """
    sampler = FeatureSampler(stack, poses, window, extractor)
    jobs = [(i, way) for i in range(len(stack)) for way in orientations]
    found = []
    with single_torch_thread(), torch.inference_mode(False), torch.no_grad():
        known: dict[tuple[int, int], Maps] = {}
        if basis is None:  # its maps are computed once
            some = [(int(i), orientations[0]) for i in evenly_spaced_rows(len(stack), 100)]
            known = dict(zip(some, map_ordered(lambda job: sampler.maps(*job), some, usable_cores()), strict=True))
            basis = FeatureBasis.of(list(known.values()))

        def cells(job: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
            maps, seen = known.pop(job) if job in known else sampler.maps(*job)
            return basis.project(maps).numpy().astype(np.float16), seen

        with Progress(len(jobs), "features", quiet=quiet) as progress:
            for one in map_ordered(cells, jobs, usable_cores()):
                found.append(one)
                progress.update()
    values, seen = (
        np.stack(one).reshape(len(stack), len(orientations), *one[0].shape) for one in zip(*found, strict=True)
    )
    return FeatureMaps(values, seen, sampler.grid, cell_places(sampler.grid, extractor), extractor.side, basis)


def cell_places(grid: tuple[int, int], extractor: Extractor) -> np.ndarray:
    """(L, 2) x and y of the cells' centres in pixels of the view, row by row."""
    height, width = (extractor.side / cells for cells in grid)
    x = (np.arange(grid[1]) + 0.5 + extractor.offset) * width - 0.5
    y = (np.arange(grid[0]) + 0.5 + extractor.offset) * height - 0.5
    return np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)


class FeatureSampler:
    """Samples the window of each image and computes its features."""

    def __init__(
        self, stack: Stack, poses: np.ndarray, window: Window, extractor: Extractor, size: int | None = None
    ) -> None:
        """size: the frame's longer side in the sampled pictures; None is the resolution of the network, or that of the
        originals if it is lower."""
        self.extractor, self.window = extractor, window
        if size is None:
            self.stack = stack.at(round(extractor.side * max(stack.frame) / (2 * window.half)))
        else:
            self.stack = stack.at(size, enlarge=True)
        larger_from_stack = self.stack.stack_from(stack)
        view = window.frame_from_view(extractor.side)
        self.matrices = normalise(larger_from_stack @ np.asarray(poses, dtype=np.float64) @ view)
        self.grid = (0, 0)

    def picture(self, image: int, way: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(3, side, side) colours in [0, 1], grey outside the image, and (side, side) the coverage."""
        side = self.extractor.side
        matrix = self.matrices[image] @ np.linalg.inv(upright_from_source(way, (side, side)))
        matrices = torch.from_numpy(matrix)[None].float()
        pixels, masks = self.stack.images([image]), self.stack.masks([image])
        shown = warp(pixels, matrices, (side, side), padding="border")[0]
        inside = coverage(matrices, self.stack.size, (side, side))[0, 0]
        if masks is not None:
            inside = inside * warp(masks, matrices, (side, side))[0, 0]
        shown = shown if len(shown) == 3 else shown.mean(0, keepdim=True).expand(3, -1, -1)
        return torch.where(inside > 0.5, shown, torch.full_like(shown, 0.45)), inside

    def maps(self, image: int, way: int) -> Maps:
        """(C, h, w) features and (h·w,) which cells are covered."""
        picture, inside = self.picture(image, way)
        maps = self.extractor.maps(picture)
        self.grid = (maps.shape[1], maps.shape[2])
        seen = functional.adaptive_avg_pool2d(inside[None], self.grid)[0] > 0.5  # half of the cell
        return maps, seen.flatten().numpy()


def centring_matrices(side: int) -> tuple[np.ndarray, np.ndarray]:
    """(3, 3) each: pixels of a view → pixels about its centre, and back."""
    to_centre, back = np.eye(3), np.eye(3)
    to_centre[:2, 2], back[:2, 2] = -(side - 1) / 2, (side - 1) / 2
    return to_centre, back


@dataclass(frozen=True)
class FeatureTemplate:
    """Mean feature map of a set: cells (L, K) of length 1, and (L,) the agreement of the images there, from 0 to 1."""

    cells: torch.Tensor
    weight: torch.Tensor
    basis: FeatureBasis
    window: Window

    @classmethod
    def of(
        cls, seen: FeatureMaps, window: Window, chosen: np.ndarray, poses: np.ndarray, agreement: np.ndarray
    ) -> FeatureTemplate:
        """The mean of the images whose matches agree, warped by poses common_from_view about the centre."""
        trusted = np.flatnonzero(agreement >= MIN_RELATIVE_AGREEMENT * np.median(agreement))
        to_centre, back = centring_matrices(seen.side)
        total = torch.zeros(seen.cells.shape[2:])
        for i in trusted.tolist():
            cells, _ = seen.warped(i, int(chosen[i]), back @ np.linalg.inv(poses[i]) @ to_centre)
            total = total + cells
        length = total.norm(dim=1)
        return cls(total / length.clamp(min=1e-6)[:, None], length / max(1, len(trusted)), seen.basis, window)


@dataclass(frozen=True)
class FeatureSimilarity:
    """Pictures of features in the object's window, on which likeness is measured like on local contrast."""

    extractor: Extractor
    template: FeatureTemplate

    def of(self, stack: Stack, poses: np.ndarray, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures (B, h, w) of channels side by side for these rows, under poses of the whole stack, and their
        coverage."""
        few = stack.some(rows)
        seen = compute_feature_maps(
            few, np.asarray(poses)[rows], self.template.window, self.extractor, basis=self.template.basis
        )
        height, width = seen.grid
        channels = min(16, seen.cells.shape[-1])  # the others hold little of the variance
        across = max(1, int(np.sqrt(channels)))
        down = channels // across
        cells = torch.from_numpy(np.asarray(seen.cells[:, 0, :, : down * across], dtype=np.float32))
        inside = torch.from_numpy(seen.seen[:, 0]).float()
        tiles = (cells * inside[..., None]).reshape(len(rows), height, width, down, across)
        pictures = tiles.permute(0, 3, 1, 4, 2).reshape(len(rows), down * height, across * width)
        counts = inside.reshape(len(rows), height, width).repeat(1, down, across)
        return pictures.contiguous(), counts
