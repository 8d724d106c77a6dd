"""What is compared of a set's images, where it counts, and which poses are sound: chosen once per set.

Images come in two kinds. An *object* on empty ground (a digit, a cell on black) goes on as zeros beyond the edge of its
picture, and its ink is a quantity to keep. A *photo* shows something wherever it shows anything: beyond its edge is
unknown, light changes from one to the next, and what is to be aligned is in the middle.

| class         | compared                     | counts                            | used by                    |
|---------------|------------------------------|-----------------------------------|----------------------------|
| ObjectPixels  | pixels                       | everywhere, or under masks        | every method, on objects   |
| PhotoPixels   | pixels                       | where the photograph covers       | the peers, on photographs  |
| PhotoEdges    | oriented, normalised edges   | the same, more in the middle      | `joint` and `dprc`         |
"""

from __future__ import annotations

from typing import ClassVar

import torch

from congeal.evaluation.thresholds import MATCH_INK
from congeal.filters import centre_window, gaussian_blur, local_contrast, normalised_correlation, oriented_gradients
from congeal.geometry import MOTIONS, coverage, warp
from congeal.geometry.matrix import Size
from congeal.geometry.warping import Padding

Weights = torch.Tensor | None
Share = float | torch.Tensor

NO_MATCH = -1.0
"""The score of a pose that makes no sense."""
MIN_VISIBLE_SHARE = 0.5
"""Share of what usually counts: a pose that shows less of a photograph proves nothing. Chosen by judgement."""
PHOTO_BLUR_SHARE = 1.5 / 64
"""Blur of the last comparison of photographs, as a share of the longer side: sharper detail differs between them."""
EDGE_HUBER = 0.03
"""Differences of oriented gradients beyond this count linearly: most of what differs between two photographs of one
kind, a smile, a shadow, a hat, is not a matter of pose."""
STAGE_BLURS = (2.7, 1.7)
"""Blurs of the two similarity stages, in units of the last blur: the first sees the whole face (LFW)."""


class ImageFeatures:
    """What a kind of set is compared on. All images are (B, C, H, W); matrices are stack_from_frame (B, 3, 3)."""

    kind: ClassVar[str]  # "object" or "photo"
    empty_ground: ClassVar[bool]  # beyond the edge of an image there is nothing (zeros); otherwise it is unknown
    robust: ClassVar[float | None] = None  # Huber threshold on differences of what is compared
    costly: ClassVar[bool] = False  # features take longer to make than to warp, so they are worth keeping
    needs_prior: ClassVar[bool] = False  # poses are held to likely ones: single images have too little evidence
    settled: ClassVar[float] = 0.01 / 28  # mean corner motion, over the longer side, below which a stage ends

    @property
    def keeps_intensity(self) -> bool:
        """Whether ink is a quantity to keep."""
        return self.empty_ground

    @property
    def padding(self) -> Padding:
        """What `warp` shows beyond the edge: a photograph does not end in black."""
        return "zeros" if self.empty_ground else "border"

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """What is compared of images in [0, 1]."""
        return images

    def detail(self, images: torch.Tensor, wider: float = 1.0) -> torch.Tensor:
        """(B, 1, H, W): what is compared where poses are brought to a fraction of a pixel. wider: how much larger than
        in other images a thing is in these."""
        return local_contrast(images, wider)

    def blurred(self, images: torch.Tensor, sigma: float) -> torch.Tensor:
        """Gaussian blur; where the ground beyond the edge is unknown, the window is cut there, not filled."""
        soft = gaussian_blur(images, sigma)
        return soft if self.empty_ground or sigma <= 0 else soft / gaussian_blur(torch.ones_like(images[:1, :1]), sigma)

    def covered(self, matrices: torch.Tensor, source_size: Size, frame: Size, masks: Weights = None) -> Weights:
        """(B, 1, h, w) the share of each frame pixel that has image under it; None: all count alike."""
        if masks is not None:
            return warp(masks, matrices, frame)
        return None if self.empty_ground else coverage(matrices, source_size, frame)

    def weights(self, matrices: torch.Tensor, source_size: Size, frame: Size, masks: Weights = None) -> Weights:
        """(B, 1, h, w) how much each frame pixel counts in a comparison; None: all count alike."""
        return self.covered(matrices, source_size, frame, masks)

    def score(
        self, shown: torch.Tensor, template: torch.Tensor, images: torch.Tensor, weights: Weights, usual: Share
    ) -> torch.Tensor:
        """(B,) normalised correlation of what the frame shows with a template, or NO_MATCH for unsound poses.

        images: what the source shows. usual: the share of a frame that its mask usually covers, (B,) or 1.
        """
        value = normalised_correlation(shown, template, weights)
        sound = self.sound(shown, images, weights, usual)
        return torch.where(sound & torch.isfinite(value), value, torch.full_like(value, NO_MATCH))

    def sound(self, shown: torch.Tensor, images: torch.Tensor, weights: Weights, usual: Share) -> torch.Tensor:
        """(B,) whether a pose shows enough of its image for its score to mean anything."""
        raise NotImplementedError

    def last_blur(self, frame: Size) -> float:
        """Sigma, in frame pixels, of the last and sharpest comparison."""
        return 0.0

    def refinement(self, motion: str, frame: Size) -> list[tuple[str, float]]:
        """The stages of a joint refinement, each a motion and a blur in frame pixels."""
        return [(motion, self.last_blur(frame))]


class ObjectPixels(ImageFeatures):
    """Pixels of objects on empty ground."""

    kind = "object"
    empty_ground = True

    def detail(self, images: torch.Tensor, wider: float = 1.0) -> torch.Tensor:
        """Their brightness: light does not change on empty ground, and its edge would outweigh what is on it."""
        return images.mean(1, keepdim=True)

    def sound(self, shown: torch.Tensor, images: torch.Tensor, weights: Weights, usual: Share) -> torch.Tensor:
        """An object that lost two thirds of its ink, or shows three times as much, is no match."""
        ink = shown.flatten(1).sum(1) / images.flatten(1).sum(1).clamp(min=1e-6)
        return (ink > MATCH_INK[0]) & (ink < MATCH_INK[1])


class PhotoPixels(ImageFeatures):
    """Pixels of photographs, where they cover the frame."""

    kind = "photo"
    empty_ground = False

    def sound(self, shown: torch.Tensor, images: torch.Tensor, weights: Weights, usual: Share) -> torch.Tensor:
        """Half of what usually counts must be seen; a mask may be small by itself."""
        if weights is None:
            return torch.ones(len(shown), dtype=torch.bool)
        return weights.mean((1, 2, 3)) > MIN_VISIBLE_SHARE * usual


class PhotoEdges(PhotoPixels):
    """Edges of photographs by direction, normalised by their surroundings; the middle of the frame counts most."""

    robust = EDGE_HUBER
    costly = True
    needs_prior = True
    settled = 0.03 / 64  # what is left is far below the error of a photograph's pose

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 4, H, W): edges to the right, left, down and up."""
        return oriented_gradients(images)

    def weights(self, matrices: torch.Tensor, source_size: Size, frame: Size, masks: Weights = None) -> Weights:
        """Coverage, more in the middle; a mask says by itself what counts."""
        seen = self.covered(matrices, source_size, frame, masks)
        return seen if masks is not None or seen is None else seen * centre_window(frame).to(matrices)

    def last_blur(self, frame: Size) -> float:
        """A little out of focus: what is sharp differs from one photograph to the next."""
        return PHOTO_BLUR_SHARE * max(frame)

    def refinement(self, motion: str, frame: Size) -> list[tuple[str, float]]:
        """Few freedoms and much blur first: a homography bends to fit whatever it meets."""
        last = self.last_blur(frame)
        stages = [("similarity", share * last) for share in STAGE_BLURS] + [("affine", last), ("homography", last)]
        return [(at_most(name, motion), sigma) for name, sigma in stages]


def pixel_features(kind: str) -> ImageFeatures:
    """Pixels as they are: what the classic methods compare."""
    return ObjectPixels() if kind == "object" else PhotoPixels()


def robust_features(kind: str) -> ImageFeatures:
    """What stays the same from image to image: pixels of objects, edges of photographs."""
    return ObjectPixels() if kind == "object" else PhotoEdges()


def at_most(motion: str, largest: str) -> str:
    """The smaller of two motions."""
    return MOTIONS[min(MOTIONS.index(motion), MOTIONS.index(largest))]
