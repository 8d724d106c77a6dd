"""Looks: the images of a stack under their poses, as a network's features see them.

A look is a square window of the frame, the same for all images. Each image is sampled there from a picture as fine as
the look needs, its features are computed once, and what is kept of them is a few numbers per cell: the directions in
which the cells of the whole set differ most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from congeal.files import allocate
from congeal.geometry import coverage, normalise, warp
from congeal.geometry.orientation import upright_from_source
from congeal.images import Stack
from congeal.images.threads import in_order, usable_cores
from congeal.progress import Progress
from congeal.solvers.extractors import Extractor
from congeal.solvers.threads import one_thread

CHANNELS = 64
"""Numbers that are kept of a cell: two thirds of the variance, and all of what nearest neighbours agree on."""
_LEARNT_CELLS = 40_000  # from which the directions are learnt
_SEEN = 0.5  # of a cell that lies in the image: less is not looked at
_IN_MEMORY = 256 << 20  # bytes; more goes to a memory map


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
class Basis:
    """What is kept of a cell: `directions` (C, K) of the features less `centre` (C,), then brought to length 1."""

    centre: torch.Tensor
    directions: torch.Tensor

    def reduced(self, maps: torch.Tensor) -> torch.Tensor:
        """(C, h, w) → (h·w, K), each row of length 1."""
        return functional.normalize((maps.flatten(1).T - self.centre) @ self.directions, dim=1)


@dataclass(frozen=True)
class Look:
    """The cells of n images, each in several orientations.

    cells : (n, O, L, K) unit vectors, L = h·w cells row by row
    seen : (n, O, L) bool, where there is image
    grid : (h, w)
    places : (L, 2) centres of the cells, in pixels of the view
    side : pixels along a view
    basis : what was kept
    """

    cells: Any
    seen: np.ndarray
    grid: tuple[int, int]
    places: np.ndarray
    side: int
    basis: Basis

    def of(self, image: int, way: int = 0) -> torch.Tensor:
        """(L, K) of one image in its orientation number `way` of those that were looked at."""
        return torch.from_numpy(np.asarray(self.cells[image, way], dtype=np.float32))

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

    def moved(self, image: int, way: int, view_from_common: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(L, K) the same cells as they lie in the common view, and (L,) how much of each was seen.

        view_from_common (3, 3) is in pixels of the view.
        """
        view_from_cell = self.view_from_cell
        matrix = torch.from_numpy(np.linalg.inv(view_from_cell) @ view_from_common @ view_from_cell)[None].float()
        cells = self.of(image, way).T.reshape(1, -1, *self.grid)
        seen = torch.from_numpy(self.seen[image, way]).float().reshape(1, 1, *self.grid)
        both = warp(torch.cat([cells * seen, seen], 1), matrix, self.grid)[0].flatten(1)
        return both[:-1].T, both[-1]


def look(
    stack: Stack,
    poses: np.ndarray,
    window: Window,
    extractor: Extractor,
    orientations: Sequence[int] = (0,),
    basis: Basis | None = None,
    *,
    quiet: bool = True,
) -> Look:
    """Look at every image of a stack under stack_from_frame poses (n, 3, 3), in each of the orientations.

    basis: of an earlier set, for new images; None learns one.
    """
    seeing = Seeing(stack, poses, window, extractor)
    jobs = [(i, way) for i in range(len(stack)) for way in orientations]
    with one_thread(), torch.inference_mode(False), torch.no_grad():
        if basis is None:
            basis = _learn(seeing, len(stack), orientations[0])
        cells: Any = None
        seen = np.zeros((len(stack), len(orientations), 0), dtype=bool)
        with Progress(len(jobs), "looking", quiet=quiet) as progress:
            found = in_order(lambda job: seeing.cells(*job, basis), jobs, usable_cores(), begin=_one_thread)
            for number, (values, inside) in enumerate(found):
                if cells is None:
                    shape = (len(stack), len(orientations), *values.shape)
                    cells, seen = _room(shape), np.zeros(shape[:3], dtype=bool)
                cells[divmod(number, len(orientations))], seen[divmod(number, len(orientations))] = values, inside
                progress.update()
    grid = seeing.grid
    return Look(cells, seen, grid, cell_places(grid, extractor), extractor.side, basis)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _room(shape: tuple[int, ...]) -> Any:
    """float16 for all cells: in memory, or in a file that goes with the process."""
    if 2 * int(np.prod(shape)) <= _IN_MEMORY:
        return np.zeros(shape, np.float16)
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="congeal-features-")
    room = allocate(Path(folder.name) / "cells.npy", shape, np.dtype(np.float16))
    _FOLDERS.append(folder)
    return room


_FOLDERS: list[Any] = []  # removed when the process ends


def cell_places(grid: tuple[int, int], extractor: Extractor) -> np.ndarray:
    """(L, 2) x and y of the cells' centres in pixels of the view, row by row."""
    height, width = (extractor.side / cells for cells in grid)
    x = (np.arange(grid[1]) + 0.5 + extractor.offset) * width - 0.5
    y = (np.arange(grid[0]) + 0.5 + extractor.offset) * height - 0.5
    return np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)


class Seeing:
    """Samples the window of each image and computes its features."""

    def __init__(
        self, stack: Stack, poses: np.ndarray, window: Window, extractor: Extractor, size: int | None = None
    ) -> None:
        """size: the frame's longer side in the pictures that are looked at, once; None is as fine as the window needs
        where the originals have it."""
        self.extractor, self.window = extractor, window
        if size is None:
            self.stack = stack.at(round(extractor.side * max(stack.frame) / (2 * window.half)))
        else:
            self.stack = stack.at(size, enlarge=True, once=True)
        larger_from_stack = self.stack.stack_from(stack)
        view = window.frame_from_view(extractor.side)
        self.matrices = normalise(larger_from_stack @ np.asarray(poses, dtype=np.float64) @ view)
        self.grid = (0, 0)
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, np.ndarray]] = {}

    def picture(self, image: int, way: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(3, side, side) colours in [0, 1], grey where there is no image, and (side, side) where there is."""
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

    def maps(self, image: int, way: int) -> tuple[torch.Tensor, np.ndarray]:
        """(C, h, w) features and (h·w,) which cells have image."""
        if (image, way) in self._kept:
            return self._kept.pop((image, way))
        picture, inside = self.picture(image, way)
        maps = self.extractor.maps(picture)
        self.grid = (maps.shape[1], maps.shape[2])
        seen = functional.adaptive_avg_pool2d(inside[None], self.grid)[0] > _SEEN
        return maps, seen.flatten().numpy()

    def cells(self, image: int, way: int, basis: Basis) -> tuple[np.ndarray, np.ndarray]:
        """(L, K) what is kept, and (L,) which cells have image."""
        maps, seen = self.maps(image, way)
        return basis.reduced(maps).numpy().astype(np.float16), seen


def _learn(seeing: Seeing, n: int, way: int) -> Basis:
    """The directions in which cells of up to 100 images differ most; their maps are kept until they are asked for."""
    some = np.unique(np.linspace(0, n - 1, min(n, 100)).round().astype(int)).tolist()
    rows = []
    for i, (maps, seen) in zip(
        some, in_order(lambda i: seeing.maps(i, way), some, usable_cores(), begin=_one_thread), strict=True
    ):
        seeing._kept[i, way] = maps, seen
        cells = maps.flatten(1).T[torch.from_numpy(seen)]
        rows.append(cells[:: max(1, len(cells) * len(some) // _LEARNT_CELLS)])
    values = torch.cat(rows)
    if len(values) < 2:
        values = torch.cat([values, torch.zeros(2, maps.shape[0])])
    centre = values.mean(0)
    covariance = ((values - centre).T @ (values - centre)).double() / len(values)
    _, directions = torch.linalg.eigh(covariance)
    kept = directions.flip(1)[:, :CHANNELS].float()
    sign = torch.sign(kept.gather(0, kept.abs().argmax(0, keepdim=True)))  # an eigenvector has none of its own
    return Basis(centre, kept * sign)
