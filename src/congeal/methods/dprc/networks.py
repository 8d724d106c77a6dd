"""The networks: the DeSTNet aligner, and the auto-encoders whose failure measures complexity.

`paper_networks` builds the paper's own, from convolutions; `recipe_networks` the small dense ones of our recipe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from congeal.filters import gaussian_blur
from congeal.geometry import from_normalised, matrix_from_parameters, n_parameters, normalise, warp
from congeal.geometry.matrix import Size
from congeal.geometry.motion import IDENTITY

BLUR_PER_STEP = 0.35
"""Sigma of the blur per frame pixel that a view pixel covers: enough that a coarse view does not alias. Chosen by
judgement."""
FUSION_WIDTH = 32
"""k^F of the paper, the expansion rate: hidden units of a fusion layer per parameter of the motion, 256 in all for a
homography."""
DENSE_WIDTH = 256
"""Hidden units of the small networks' first layers. Chosen by judgement: a fusion layer of the paper has as many."""

Networks = TypeVar("Networks")


def convolutional_localiser(channels: int, size: Size, layers: Sequence[tuple[int, int, int]], out: int) -> nn.Module:
    """Convolutions (kernel, filters, stride) with tanh, then one fully connected layer: the paper's aligner level.

    Stride-1 layers are unpadded (28 → 22 → 16 with two 7×7 ones); stride-2 layers are padded and halve the map. The
    conv1 after the last map in Table 1 is read as a fully connected layer. The paper gives neither their tanh nor
    their padding.
    """
    parts: list[nn.Module] = []
    before = channels
    for kernel, filters, stride in layers:
        parts += [nn.Conv2d(before, filters, kernel, stride, padding=kernel // 2 if stride > 1 else 0), nn.Tanh()]
        before = filters
    trunk = nn.Sequential(*parts, nn.Flatten())
    with torch.no_grad():
        features = trunk(torch.zeros(1, channels, *size)).shape[1]
    return nn.Sequential(trunk, nn.Linear(features, out))


class DeSTNet(nn.Module):
    """Levels that each look at the original image through the warp so far and correct it.

    x_m = I sampled through H_{m−1};  u_m = localiser_m(x_m);  Δ_m = W2 tanh(W1 [u_1 … u_m]);  H_m = H_{m−1} · exp(Δ_m).

    Δ_m is the fusion F of the paper's Table 1. In printed mode exp(Δ) is I + Δ. That W2 starts at zero is our choice.

    views: per level (zoom, resolution): how many times wider than the frame it looks, and on how many pixels of the
    longer side (None: all of the frame's). layers: convolutions of the localisers, or None for dense ones.
    bound: tanh bound on Δ. through_sampling: let gradients pass through the re-sampling. form: "exp", or "matrix" for
    the plain I + [[p1, p2, p3], [p4, p5, p6], [p7, p8, 0]] of the DeSTNet paper.
    """

    frame_from_view: torch.Tensor
    intensity: torch.Tensor

    def __init__(
        self,
        channels: int,
        frame: Size,
        motion: str = "homography",
        *,
        views: Sequence[tuple[float, int | None]] = ((2.0, 14), (1.4, 14), (1.0, 14), (1.0, 20)),
        layers: Sequence[tuple[int, int, int]] | None = None,
        bound: float | None = 1.0,
        through_sampling: bool = False,
        form: str = "exp",
    ) -> None:
        super().__init__()
        self.frame, self.bound, self.through_sampling, self.form = frame, bound, through_sampling, form
        count = n_parameters(motion)
        self.sizes: list[Size] = []
        self.blurs: list[float] = []
        frame_from_view = []
        for zoom, resolution in views:
            scale = 1.0 if resolution is None else min(1.0, resolution / max(frame))
            size = (max(2, round(frame[0] * scale)), max(2, round(frame[1] * scale)))
            y, x = frame[0] * zoom / size[0], frame[1] * zoom / size[1]
            off_y, off_x = (frame[0] - 1) / 2 - y * (size[0] - 1) / 2, (frame[1] - 1) / 2 - x * (size[1] - 1) / 2
            frame_from_view.append([[x, 0, off_x], [0, y, off_y], [0, 0, 1.0]])
            self.sizes.append(size)
            self.blurs.append(0.0 if scale == 1 else BLUR_PER_STEP * frame[1] / size[1])
        self.register_buffer("frame_from_view", torch.tensor(frame_from_view, dtype=torch.float32), persistent=False)
        self.register_buffer("intensity", torch.tensor([0.0, 1.0], dtype=torch.float32))
        self.localisers = nn.ModuleList()
        for size in self.sizes:
            if layers is not None:
                self.localisers.append(convolutional_localiser(channels, size, layers, count))
            else:  # fully connected on a small view: a tenth of the convolutions' time on a CPU
                widths = [channels * size[0] * size[1], DENSE_WIDTH, DENSE_WIDTH // 2]
                hidden = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.GELU())]
                self.localisers.append(nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], count)))
        self.fusions = nn.ModuleList()
        for level in range(len(views)):
            grow, shrink = nn.Linear(count * (level + 1), FUSION_WIDTH * count), nn.Linear(FUSION_WIDTH * count, count)
            # Only the last layer starts at zero: the net starts at the identity, and everything before it can learn.
            for values in shrink.parameters():
                nn.init.zeros_(values)
            self.fusions.append(nn.Sequential(grow, nn.Tanh(), shrink))

    def forward(self, images: torch.Tensor, stack_from_frame: torch.Tensor) -> list[torch.Tensor]:
        """Images (B, C, H, W) and where the frame starts (B, 3, 3) → stack_from_frame after each level."""
        return self.correct(self.blurred(images), stack_from_frame)

    def blurred(self, images: torch.Tensor) -> dict[float, torch.Tensor]:
        """The images by the blur of a level; made once for all passes, because it takes a third of a step's time."""
        return {sigma: gaussian_blur(images, sigma) for sigma in sorted(set(self.blurs))}

    def correct(self, blurred: dict[float, torch.Tensor], stack_from_frame: torch.Tensor) -> list[torch.Tensor]:
        """`forward` from blurred images."""
        updates: list[torch.Tensor] = []
        poses, pose = [], stack_from_frame
        for level, (localise, fuse) in enumerate(zip(self.localisers, self.fusions, strict=True)):
            seen_from = (pose if self.through_sampling else pose.detach()) @ self.frame_from_view[level]
            images = blurred[self.blurs[level]]
            view = warp(images, seen_from.to(images.dtype), self.sizes[level]).to(pose.dtype)
            updates.append(localise((view - self.intensity[0]) / self.intensity[1]))
            pose = pose @ from_normalised(self._matrix(fuse(torch.cat(updates, 1))), self.frame)
            poses.append(pose)
        return poses

    def predict(self, images: torch.Tensor, stack_from_frame: torch.Tensor, passes: int) -> torch.Tensor:
        """The last level's answer, `passes` times over, each from where the one before ended."""
        blurred, pose = self.blurred(images), stack_from_frame
        for _ in range(passes):
            pose = normalise(self.correct(blurred, pose)[-1])
        return pose

    def _matrix(self, update: torch.Tensor) -> torch.Tensor:
        if self.bound is not None:
            update = torch.tanh(update) * self.bound
        if self.form == "exp":
            return matrix_from_parameters(update)
        zero = update.new_zeros(len(update), 1)
        return torch.cat([update, zero], 1).view(-1, 3, 3) + IDENTITY.to(update)


class AutoEncoder(nn.Module):
    """The paper's: strided convolutions, two fully connected layers, a sigmoid code, and the mirror image of it.

    tanh after every layer but the code's, the last one included, as printed. A conv1 of Table 1 that follows the last
    map of the encoder, or precedes the first one of the decoder, is read as a fully connected layer.
    """

    def __init__(
        self, channels: int, frame: Size, code_size: int, *, filters: int, hidden: int, seed_map: int, seed_filters: int
    ) -> None:
        super().__init__()
        self.frame = frame
        widths = [channels, filters, filters, filters]
        encoder: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            encoder += [nn.Conv2d(a, b, 3, 2, padding=1), nn.Tanh()]
        height, width = (-(-side // 8) for side in frame)
        encoder += [nn.Flatten(), nn.Linear(filters * height * width, hidden), nn.Tanh()]
        encoder += [nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, code_size), nn.Sigmoid()]
        self.encoder = nn.Sequential(*encoder)
        decoder: list[nn.Module] = [nn.Linear(code_size, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()]
        decoder += [nn.Linear(hidden, seed_filters * seed_map * seed_map), nn.Tanh()]
        decoder += [nn.Unflatten(1, (seed_filters, seed_map, seed_map))]
        for a, b in itertools.pairwise([seed_filters, filters, filters, filters]):
            decoder += [nn.ConvTranspose2d(a, b, 3, 2, padding=1, output_padding=1), nn.Tanh()]
        decoder += [nn.Conv2d(filters, channels, 1), nn.Tanh()]
        self.decoder = nn.Sequential(*decoder)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reconstruction (B, C, h, w) and code (B, |z|) in [0, 1]."""
        code = self.encoder(images)
        painted = self.decoder(code)
        top, left = (painted.shape[-2] - self.frame[0]) // 2, (painted.shape[-1] - self.frame[1]) // 2
        return painted[..., top : top + self.frame[0], left : left + self.frame[1]], code


class SmallAutoEncoder(nn.Module):
    """Fully connected, with a learned template under the decoder: useful after seconds, where a convolutional one
    must first learn to paint."""

    def __init__(self, channels: int, frame: Size, code_size: int) -> None:
        super().__init__()
        pixels = channels * frame[0] * frame[1]
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, DENSE_WIDTH), nn.Tanh(), nn.Linear(DENSE_WIDTH, code_size), nn.Sigmoid()
        )
        self.decoder = nn.Sequential(nn.Linear(code_size, DENSE_WIDTH), nn.Tanh(), nn.Linear(DENSE_WIDTH, pixels))
        for values in self.decoder[-1].parameters():
            nn.init.zeros_(values)
        self.template = nn.Parameter(torch.zeros(channels, *frame))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reconstruction (B, C, h, w) and code (B, |z|) in [0, 1]."""
        code = self.encoder(images)
        return self.decoder(code).view_as(images) + self.template, code


PAPER_NETWORKS = ("mnist", "lfw")


def paper_networks(which: str, channels: int, frame: Size, motion: str, code_size: int) -> tuple[DeSTNet, AutoEncoder]:
    """The aligner and the auto-encoder of the paper's Table 1, for any frame and number of channels.

    "mnist" is DeSTNet-4 on 7×7 convolutions, "lfw" DeSTNet-5 on strided 3×3 ones. A smaller motion than the paper's
    homography takes the exponential form, because the plain matrix of fewer parameters is not closed.
    """
    form = "matrix" if motion == "homography" else "exp"
    # Three up-convolutions of stride 2 must reach the frame; what is too much is cropped.
    seed_map = -(-max(frame) // 8)
    levels, layers = (4, ((7, 4, 1), (7, 8, 1))) if which == "mnist" else (5, ((3, 64, 2), (3, 128, 2), (3, 256, 2)))
    views = ((1.0, None),) * levels
    aligner = DeSTNet(channels, frame, motion, views=views, layers=layers, bound=None, through_sampling=True, form=form)
    filters, hidden, seed_filters = (100, 1024, 1) if which == "mnist" else (128, 512, 3)
    autoencoder = AutoEncoder(
        channels, frame, code_size, filters=filters, hidden=hidden, seed_map=seed_map, seed_filters=seed_filters
    )
    return aligner.float(), autoencoder.float()  # whatever torch's default is


def recipe_networks(channels: int, frame: Size, motion: str, code_size: int) -> tuple[DeSTNet, SmallAutoEncoder]:
    """Dense localisers on small views, and a dense auto-encoder with a template: a tenth of the time on a CPU."""
    return DeSTNet(channels, frame, motion).float(), SmallAutoEncoder(channels, frame, code_size).float()


class _SeededDraws(TorchFunctionMode):
    """Random numbers of this thread from a generator: torch's own is one for all threads, whose draws would mix."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if "generator" in options or func in (torch.Tensor.uniform_, torch.Tensor.normal_):
            options["generator"] = options.get("generator") or self.generator
        return func(*args, **options)


def seeded(make: Callable[[], Networks], random_state: int) -> Networks:
    """Networks whose first weights come from a seed."""
    with _SeededDraws(torch.Generator().manual_seed(random_state)):
        return make()
