"""The method as the paper prints it, and nothing else: pixels in, D + λC, its own networks, one loop.

Annunziata, Sagonas and Calì, "Jointly Aligning Millions of Images with Deep Penalised Reconstruction Congealing", ICCV
2019. What the paper leaves open (|z|, batch size, number of steps, which image is the reference) is a parameter here.
`congeal reproduce paper` shows what this does; `recipe.py` is what we do instead.
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
from congeal.methods.deep.losses import complexity, distortion, positional_weights
from congeal.methods.deep.networks import PAPER_NETWORKS, DeSTNet, load_networks, paper_networks, seeded
from congeal.methods.job import Job
from congeal.methods.measure import measure
from congeal.solvers.appearance import Appearance, RawPixels
from congeal.solvers.reference import check_one_image, reference_image
from congeal.solvers.streaming import chunks, start_poses

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
class PaperCongealing(Method):
    """Deep penalised reconstruction congealing as printed, without any of our additions.

    Made by `DeepCongealing.paper_mnist()` and `DeepCongealing.paper_lfw()`. Expect it to empty the frame: see
    `congeal reproduce paper`. To align images, use `DeepCongealing`.

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

    name: ClassVar[str] = "paper"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_one_image(self.reference, self.name)
        if self.networks not in PAPER_NETWORKS:
            raise CongealError(f"unknown networks '{self.networks}': choose one of {', '.join(PAPER_NETWORKS)}")
        if self.guards:
            raise CongealError("the paper's training has no guards: leave guards=False, or use DeepCongealing")

    def _appearance(self, kind: str) -> Appearance:
        return RawPixels(kind)

    def _align(self, stack: Stack, appearance: Appearance, job: Job) -> torch.Tensor:
        state = job.load() or {}
        trained = self._train(stack, appearance.kind, job, state)
        found = start_poses(stack)
        self._place(stack, job, found, beside=trained)
        return found

    def _train(self, stack: Stack, kind: str, job: Job, state: Mapping[str, Any]) -> dict[str, Any]:
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
            job.step(step, self.steps, **values)
            if job.due():
                job.save(now(step))
        self.aligner_, self.autoencoder_ = aligner.eval(), autoencoder.eval()
        trained = now(self.steps)
        if first < self.steps:
            job.save(trained)
        return trained

    def _networks(self, channels: int, frame: tuple[int, int]) -> tuple[DeSTNet, torch.nn.Module]:
        make = lambda: paper_networks(self.networks, channels, frame, self.motion, self.code_size)  # noqa: E731
        aligner, autoencoder = seeded(make, self.random_state_)
        return aligner, autoencoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _align_new(self, stack: Stack, appearance: Appearance, job: Job) -> torch.Tensor:
        found = start_poses(stack)
        self._place(stack, job, found)
        return found

    @torch.no_grad()
    def _place(self, stack: Stack, job: Job, found: torch.Tensor, beside: Mapping[str, Any] | None = None) -> None:
        """The aligner's answer for every image."""

        def answers(parts: Any) -> Iterator[tuple[torch.Tensor, ...]]:
            for part in parts:
                yield (normalise(self.aligner_(stack.images(part), found[part])[-1]),)

        job.place(chunks(stack), answers, found, beside=beside)

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
