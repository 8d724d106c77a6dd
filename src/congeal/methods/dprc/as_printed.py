"""The method as the paper prints it, and nothing else: pixels in, D + λC, its own networks, one loop.

Annunziata, Sagonas and Calì, "Jointly Aligning Millions of Images with Deep Penalised Reconstruction Congealing", ICCV
2019. λ = γ = k = 1 and a homography are inherited from `NetworkMethod` and are as printed.

What the paper leaves open is a parameter here (|z|, batch size, number of steps, which image is the reference), or was
chosen (`networks.py`): how conv1 is read, the localisers' tanh, first weights, padding, and the parameters of p. One
thing differs: D also sees the reference I_j itself (`losses.py`).

`congeal reproduce paper` shows what this does; `estimator.py` and `training.py` have the changes that make it train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.geometry import normalise, warp
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.checks import Count, CountOrZero, Positive
from congeal.methods.dprc.losses import complexity, distortion, positional_weights
from congeal.methods.dprc.networks import PAPER_NETWORKS, DeSTNet, paper_networks, seeded
from congeal.methods.dprc.prediction import NetworkMethod
from congeal.methods.fit_context import FitContext
from congeal.methods.measure import measure
from congeal.registration.batching import reference_image, start_poses
from congeal.registration.features import ImageFeatures
from congeal.rows import evenly_spaced_rows

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (B, C, H, W) and the poses they start from (B, 3, 3)."""
MAX_WATCHED_IMAGES = 200
"""Images that the curves of `watch_every` are measured on. Chosen by judgement: a curve needs no more."""

PRINTED_MNIST: dict[str, Any] = {"networks": "mnist", "size": 28}
PRINTED_LFW: dict[str, Any] = {"networks": "lfw", "size": 250, "batch_size": 16}
"""What differs between the data sets. Networks and size are printed; the batch size for faces is ours, for memory."""


class RawPixels(ImageFeatures):
    """Pixels of anything, everywhere, with zeros beyond the edge: what the paper compares."""

    empty_ground = True

    def __init__(self, kind: str) -> None:
        self.kind = kind  # type: ignore[misc]  # of the set, which only its judge asks for

    @property
    def keeps_intensity(self) -> bool:
        """Only the ink of objects on empty ground means anything."""
        return self.kind == "object"

    def sound(
        self, shown: torch.Tensor, images: torch.Tensor, weights: torch.Tensor | None, usual: float | torch.Tensor
    ) -> torch.Tensor:
        """The paper takes every pose as it comes."""
        return torch.ones(len(shown), dtype=torch.bool)


def train(
    aligner: DeSTNet,
    autoencoder: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    batches: Iterator[Batch],
    reference: torch.Tensor,
    *,
    complexity_weight: float,
    capacity_penalty: float,
    position: torch.Tensor,
) -> Iterator[dict[str, float]]:
    """The paper's training, end to end: gives the losses of every step, one per batch."""
    for images, start in batches:
        aligned = warp(images, aligner(images, start)[-1], aligner.frame)
        rebuilt, code = autoencoder(aligned.contiguous(memory_format=torch.channels_last))
        d = distortion(aligned, reference)
        c = complexity(aligned, rebuilt, code, position, capacity_penalty)
        loss = d + complexity_weight * c
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        yield {"loss": float(loss.detach()), "distortion": float(d.detach()), "complexity": float(c.detach())}


@dataclass(kw_only=True, eq=False)
class PrintedDPRC(NetworkMethod):
    """Deep penalised reconstruction congealing as printed, without any of our additions.

    Made by `DPRC.as_printed_mnist()` and `DPRC.as_printed_lfw()`. Expect it to empty the frame: see
    `congeal reproduce paper`. To align images, use `JointAlignment` or `DPRC`.

    Parameters
    ----------
    networks : str
        "mnist" (DeSTNet-4) or "lfw" (DeSTNet-5).
    reference : str, int, path or array
        I_j: "auto" for a typical image, a position, a file or an array.
    steps, batch_size : int
        Length of training; not printed.
    learning_rate : float
        Of Adam, constant.
    complexity_weight, capacity_penalty, penalty_power : float
        λ, γ and k: 1, as printed.
    code_size : int
        |z|; not printed.
    watch_every : int
        Every so many steps the history also has APSNR, energy ratio and mean scale of some images; 0 for never.

    Attributes
    ----------
    aligner_, autoencoder_ : torch.nn.Module
        The trained networks.
    """

    networks: str = "mnist"
    steps: Count = 20_000
    batch_size: Count = 64
    learning_rate: Positive = 1e-5
    code_size: Count = 32
    watch_every: CountOrZero = 100
    guards: bool = False

    name: ClassVar[str] = "dprc-as-printed"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.networks not in PAPER_NETWORKS:
            raise CongealError(f"unknown networks '{self.networks}': choose one of {', '.join(PAPER_NETWORKS)}")
        if self.guards:
            raise CongealError("the paper's training has no guards: leave guards=False, or use DPRC")

    def _features(self, kind: str) -> ImageFeatures:
        return RawPixels(kind)

    def _make_networks(self, channels: int, frame: Size) -> tuple[DeSTNet, torch.nn.Module]:
        make = partial(paper_networks, self.networks, channels, frame, self.motion, self.code_size)
        aligner, autoencoder = seeded(make, self.random_state_)
        return aligner, autoencoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        trained = self._train(stack, image_features.kind, context, context.load() or {})
        return self._predict(stack, image_features, context, beside=trained)

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        return self._predict(stack, image_features, context)

    def _train(self, stack: Stack, kind: str, context: FitContext, state: Mapping[str, Any]) -> dict[str, Any]:
        """Train from where a checkpoint's state ended, or from the beginning; gives the state at the end."""
        aligner, autoencoder = self._make_networks(stack.channels, stack.frame)
        optimiser = torch.optim.Adam([*aligner.parameters(), *autoencoder.parameters()], lr=self.learning_rate)
        parts: dict[str, Any] = {"aligner": aligner, "autoencoder": autoencoder, "optimiser": optimiser}
        generator, first = torch.Generator().manual_seed(self.random_state_), int(state.get("step", 0))
        if state:
            generator.set_state(state["generator"])
            for name, part in parts.items():
                part.load_state_dict(state[name])

        def batches() -> Iterator[Batch]:
            for _ in range(first, self.steps):
                rows = np.sort(torch.randint(len(stack), (self.batch_size,), generator=generator).numpy())
                yield stack.images(rows), torch.as_tensor(stack.start[rows]).float()

        typical = isinstance(self.reference, str) and self.reference == "auto"
        losses = train(
            aligner,
            autoencoder,
            optimiser,
            batches(),
            reference_image("medoid" if typical else self.reference, stack, self.random_state_),
            complexity_weight=self.complexity_weight,
            capacity_penalty=self.capacity_penalty,
            position=positional_weights(self.code_size, self.penalty_power),
        )

        def now(step: int) -> dict[str, Any]:
            weights = {name: part.state_dict() for name, part in parts.items()}
            return {**weights, "generator": generator.get_state(), "step": step}

        for step, values in enumerate(losses, first + 1):
            if self.watch_every and (step == 1 or step % self.watch_every == 0):
                values |= watch(aligner, stack, kind)
            context.step(step, self.steps, **values)
            if context.due():
                context.save(now(step))
        self._keep(aligner, autoencoder)
        trained = now(self.steps)
        if first < self.steps:
            context.save(trained)
        return trained


@torch.no_grad()
def watch(aligner: DeSTNet, stack: Stack, kind: str) -> dict[str, float]:
    """What the training has made of the set so far, on images spread over it."""
    few = stack.some(evenly_spaced_rows(len(stack), MAX_WATCHED_IMAGES))
    poses = normalise(aligner(few.images(np.arange(len(few))), start_poses(few))[-1])
    quality = measure(few, poses.numpy(), kind).quality
    return {"apsnr": quality.apsnr_after, "energy": quality.energy_ratio, "scale": quality.mean_scale}
