"""The method as the paper prints it, and nothing else: pixels in, D + λC, its own networks, one loop.

Annunziata, Sagonas and Calì, "Jointly Aligning Millions of Images with Deep Penalised Reconstruction Congealing", ICCV
2019. What the paper leaves open (|z|, batch size, number of steps, which image is the reference) is a parameter here.
`congeal reproduce paper` shows what this does; `estimator.py` and `training.py` have the changes that make it train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.geometry import normalise, warp
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, NotNegative, Positive, Reference
from congeal.methods.dprc.losses import complexity, distortion, positional_weights
from congeal.methods.dprc.networks import PAPER_NETWORKS, DeSTNet, load_networks, paper_networks, seeded
from congeal.methods.fit_context import FitContext
from congeal.methods.measure import measure
from congeal.registration.batching import chunks, start_poses
from congeal.registration.features import ImageFeatures, RawPixels
from congeal.registration.reference import check_one_image, reference_image

Batch = tuple[torch.Tensor, torch.Tensor]
_WATCHED = 200  # images that curves are drawn from


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
    """The paper's training, end to end: one step per batch of images (B, C, H, W) and poses to start from (B, 3, 3).

    Gives the losses of every step.
    """
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
class PrintedDPRC(Method):
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
        λ, γ and k.
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
    reference: Reference = "auto"
    steps: Count = 20_000
    batch_size: Count = 64
    learning_rate: Positive = 1e-5
    complexity_weight: NotNegative = 1.0
    """λ: weight of C."""
    capacity_penalty: NotNegative = 1.0
    """γ: what the auto-encoder pays for using its code."""
    penalty_power: NotNegative = 1.0
    """k: how much more late code units cost."""
    code_size: Count = 32
    """|z|: units of the code."""
    watch_every: CountOrZero = 100
    """Every so many steps the history also has APSNR, energy ratio and mean scale of some images; 0 for never."""
    guards: bool = False

    name: ClassVar[str] = "dprc-as-printed"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_one_image(self.reference, self.name)
        if self.networks not in PAPER_NETWORKS:
            raise CongealError(f"unknown networks '{self.networks}': choose one of {', '.join(PAPER_NETWORKS)}")
        if self.guards:
            raise CongealError("the paper's training has no guards: leave guards=False, or use DPRC")

    def _features(self, kind: str) -> ImageFeatures:
        return RawPixels(kind)

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        state = context.load() or {}
        trained = self._train(stack, image_features.kind, context, state)
        found = start_poses(stack)
        self._place(stack, context, found, beside=trained)
        return found

    def _train(self, stack: Stack, kind: str, context: FitContext, state: Mapping[str, Any]) -> dict[str, Any]:
        """Train from where a checkpoint's state ended, or from the beginning; gives the state at the end."""
        aligner, autoencoder = self._networks(stack.channels, stack.frame)
        parts: dict[str, Any] = {"aligner": aligner, "autoencoder": autoencoder}
        parts["optimiser"] = torch.optim.Adam([*aligner.parameters(), *autoencoder.parameters()], lr=self.learning_rate)
        generator = torch.Generator().manual_seed(self.random_state_)
        for name, part in parts.items() if state else ():
            part.load_state_dict(state[name])
        if state:
            generator.set_state(state["generator"])
        first = int(state.get("step", 0))
        typical = isinstance(self.reference, str) and self.reference == "auto"
        reference = reference_image("medoid" if typical else self.reference, stack, self.random_state_)
        losses = train(
            aligner,
            autoencoder,
            parts["optimiser"],
            random_batches(stack, self.batch_size, self.steps - first, generator),
            reference,
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
        self.aligner_, self.autoencoder_ = aligner.eval(), autoencoder.eval()
        trained = now(self.steps)
        if first < self.steps:
            context.save(trained)
        return trained

    def _networks(self, channels: int, frame: tuple[int, int]) -> tuple[DeSTNet, torch.nn.Module]:
        make = lambda: paper_networks(self.networks, channels, frame, self.motion, self.code_size)  # noqa: E731
        aligner, autoencoder = seeded(make, self.random_state_)
        return aligner, autoencoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        found = start_poses(stack)
        self._place(stack, context, found)
        return found

    @torch.no_grad()
    def _place(
        self, stack: Stack, context: FitContext, found: torch.Tensor, beside: Mapping[str, Any] | None = None
    ) -> None:
        """The aligner's answer for every image."""

        def work(part: np.ndarray) -> tuple[torch.Tensor, ...]:
            return (normalise(self.aligner_(stack.images(part), found[part])[-1]),)

        context.map_images(work, chunks(stack), found, state=beside)

    def _state(self) -> dict[str, torch.Tensor]:
        nets = (("aligner", self.aligner_), ("autoencoder", self.autoencoder_))
        return {f"{name}.{key}": value for name, net in nets for key, value in net.state_dict().items()}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        nets = self._networks(self.layout_.channels, self.layout_.frame)
        load_networks(nets, state)
        self.aligner_, self.autoencoder_ = nets[0].eval(), nets[1].eval()


@torch.no_grad()
def watch(aligner: DeSTNet, stack: Stack, kind: str) -> dict[str, float]:
    """What the training has made of the set so far, on images spread over it."""
    few = stack.some(np.unique(np.linspace(0, len(stack) - 1, min(len(stack), _WATCHED)).astype(int)))
    poses = normalise(aligner(few.images(np.arange(len(few))), start_poses(few))[-1])
    quality = measure(few, poses.numpy(), kind).quality
    return {"apsnr": quality.apsnr_after, "energy": quality.energy_ratio, "scale": quality.mean_scale}


def random_batches(stack: Stack, size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
    """`count` batches of images drawn from the whole stack, with the poses they start from."""
    for _ in range(count):
        rows = np.sort(torch.randint(len(stack), (size,), generator=generator).numpy())
        yield stack.images(rows), torch.as_tensor(stack.start[rows]).float()
