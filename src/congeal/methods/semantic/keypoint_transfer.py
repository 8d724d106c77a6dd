"""Keypoint transfer: a point of one image located in all others, by poses and a local search on features.

Poses align images as a whole, but not a turned head or a raised tail. So a point is searched around its position in the
common view: likeness of features minus a cost of the distance. The search is done twice: the mean descriptor and
position of the first results, over all images, are better than those of one image.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from congeal.geometry import map_points
from congeal.geometry.warping import lookup
from congeal.methods.semantic.feature_maps import FeatureMaps

SEARCH_WIDTH = 0.1
"""Standard deviation of the search, as a share of the view's side: of 0.05 to 0.125 the one with the most points within
0.1 of the target on three birds of CUB and cars and ducks of PF-WILLOW together; a width chosen for each set by round
trips through three images reaches the same (73.6 and 73.8 %)."""


class KeypointTransfer:
    """Locates points of one view in all others; feature maps are those under the final poses."""

    def __init__(self, seen: FeatureMaps) -> None:
        self._seen, (height, width) = seen, seen.grid
        maps = [seen.of(i).T.reshape(1, -1, height, width) for i in range(len(seen.cells))]
        self._maps = maps
        fine = [functional.interpolate(m, scale_factor=2, mode="bilinear", align_corners=False) for m in maps]
        self._fine = [functional.normalize(m[0].flatten(1), dim=0) for m in fine]
        x, y = (np.arange(2 * k) / 2 - 0.25 for k in (width, height))  # two per cell along each axis
        cells = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
        self._places = torch.from_numpy(map_points(seen.view_from_cell, cells)).float()

    def __len__(self) -> int:
        return len(self._maps)

    def descriptors_at(self, image: int, places: torch.Tensor) -> torch.Tensor:
        """(P, K) descriptors of an image at points (P, 2) in pixels of the view."""
        cells = torch.from_numpy(map_points(np.linalg.inv(self._seen.view_from_cell), places.double().numpy()))
        grid = (2 * cells + 1) / torch.tensor(self._seen.grid[::-1]) - 1  # the sampler's coordinates
        shown = lookup(self._maps[image], grid.float()[None, None], "bilinear")
        return functional.normalize(shown[0, :, 0].T, dim=1)

    def find(self, descriptors: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, P, 2) the points in each image, and (n, P) their likeness, for descriptors (P, K) and points (P, 2)."""
        spread = SEARCH_WIDTH * self._seen.side
        cost = ((self._places[None] - places[:, None]) ** 2).sum(-1) / (2 * spread) ** 2  # in units of likeness
        found, alike = [], []
        for fine in self._fine:
            likeness = descriptors @ fine
            best = (likeness - cost).argmax(1)
            found.append(self._places[best])
            alike.append(likeness[torch.arange(len(best)), best])
        return torch.stack(found), torch.stack(alike)

    def nearest(self, image: int, places: np.ndarray) -> np.ndarray:
        """(n, P, 2) the most similar point of each view, at any distance."""
        descriptors = self.descriptors_at(image, torch.from_numpy(np.asarray(places, dtype=np.float32)))
        return torch.stack([self._places[(descriptors @ fine).argmax(1)] for fine in self._fine]).double().numpy()

    def transfer(self, image: int, places: np.ndarray) -> np.ndarray:
        """(n, P, 2) the points (P, 2) of an image's view in the views of all images."""
        own = torch.from_numpy(np.asarray(places, dtype=np.float32))
        descriptor = self.descriptors_at(image, own)
        found, alike = self.find(descriptor, own)
        weight = alike.clamp(0, 1).square()
        weight[image] = 0
        weight = (weight / weight.sum(0).clamp(min=1e-9))[..., None]
        shown = torch.stack([self.descriptors_at(k, found[k]) for k in range(len(self))])
        typical = functional.normalize((weight * shown).sum(0), dim=1)
        if len(self) > 1:
            descriptor, own = functional.normalize(descriptor + typical, dim=1), (weight * found).sum(0)
        return self.find(descriptor, own)[0].numpy()
