"""Deep penalised reconstruction congealing (Annunziata, Sagonas and Calì, ICCV 2019), made robust.

A densely fused spatial transformer is trained on a sample of the set; it then gives every image a first pose, old or
new, which Gauss-Newton steps bring to the last fraction of a pixel. docs/methods.md says what differs from the paper.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.geometry import MOTIONS, warp
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.deep.presets import PRESETS, check_preset, make_networks
from congeal.methods.deep.settling import Bars, Settler, photo_blur
from congeal.methods.deep.training import Trainer, look
from congeal.methods.job import Job
from congeal.progress import Progress
from congeal.solvers.filters import EDGE_NOISE, oriented_gradients
from congeal.solvers.gauge import Gauge, can_scale, chunks, total_ink
from congeal.solvers.gaussnewton import GaussNewton
from congeal.solvers.matching import Matcher, Views
from congeal.solvers.pose_prior import Plausible
from congeal.solvers.setpass import SetPass
from congeal.solvers.threads import few_threads, in_order

log = logging.getLogger("congeal")

SCHEDULES = ("cosine", "constant")

_SOUND_ENERGY = (0.9, 1.1)
_ONE_SIZE = (0.95, 0.96)  # energy ratio after refinement: the same for every set of objects, wherever it starts


@dataclass(kw_only=True, eq=False)
class DeepCongealing(Method):
    """DeSTNet with distortion D, complexity C and self-supervision, refined by Gauss-Newton.

    `preset="paper-mnist"` and `"paper-lfw"` build the paper's networks and train them as printed; every parameter you
    set to something else than its default still counts.
    """

    preset: str = "default"
    reference: Any = "auto"
    """What alignment starts from: "auto" (a typical image), a position, a file or an array."""
    steps: int = 600
    batch_size: int = 128
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    """Of the learning rate: "cosine" with warm-up and clipped gradients, or "constant"."""
    distortion_weight: float = 1.0
    """Weight of D."""
    complexity_weight: float = 1.0
    """λ: weight of C."""
    capacity_penalty: float = 1.0
    """γ: what the auto-encoder pays for using its code."""
    penalty_power: float = 1.0
    """k: how much more late code units cost."""
    code_size: int = 8
    """|z|: units of the code."""
    complexity_ramp: tuple[float, float] = (0.1, 0.4)
    """C's weight grows from zero between these shares of training, while the auto-encoder learns to rebuild."""
    train_apart: bool = True
    """The auto-encoder learns on detached images; the aligner sees it frozen."""
    remove_common_mode: bool = True
    """C gives no gradient for moving or shrinking all images together."""
    normalise_ink: bool = True
    """D and C are divided by ink, so that shrinking the object does not lower them."""
    self_supervision: float = 1.0
    """Weight of S: undoing known random warps of images that already match."""
    max_misalignment: float = 0.35
    """Largest corner noise of those warps, as a share of the frame's side."""
    running_reference: bool = True
    """The template is the mean of the images that match, renewed as training goes on; off keeps the reference image."""
    refreshes: int = 6
    """The template is renewed after every 1 / (refreshes + 1) of the steps."""
    tolerance: float = 0.001
    """Training stops early when the mean match changes by less than this between two looks, twice."""
    fit_sample: int = 6000
    """The aligner learns from at most this many images; all are aligned."""
    passes: int = 2
    """How often the aligner is applied, each time from its last answer."""
    restarts: int = 16
    """Images that match badly are tried again from this many perturbed poses."""
    refine: bool = True
    """Gauss-Newton steps after the net; off shows the raw net."""
    refine_steps: int = 40
    device: str = "auto"

    name: ClassVar[str] = "deep"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_preset(self.preset)
        if self.schedule not in SCHEDULES:
            raise CongealError(f"unknown schedule '{self.schedule}': choose one of {', '.join(SCHEDULES)}")
        _device(self.device)

    @property
    def working_size(self) -> int:
        return self.effective().size

    @property
    def end_to_end_preset(self) -> bool:
        """Whether the networks are the paper's own, which take plain pixel values."""
        return self.preset != "default"

    def effective(self) -> Self:
        """A copy with the preset's values in place of every parameter that was left at its default."""
        standard = {f.name: f.default for f in fields(type(self))}
        preset = {k: v for k, v in PRESETS[self.preset].items() if getattr(self, k) == standard[k]}
        return replace(self, **preset)

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        settings, state = self.effective(), job.load()
        with few_threads(stack.frame):
            trainer = Trainer(settings, stack, _device(self.device))
            if state is None:
                trainer.begin()
            else:
                trainer.restore(state)
            trainer.train(job)
        if state is None or "settled" not in state:
            job.save(trainer.state())
        self._learnt(trainer)
        with torch.no_grad():
            if len(trainer.sample) == len(stack):
                return self._align_learners(stack, settings)
            # A large set is aligned in one pass, each image alone, to the template that the sample settles on.
            if state is not None and "learners" in state:
                learners = state["learners"]
                self._template, self._plausible = state["template"], _plausible(state["plausible"])
            else:
                learners = self._align_learners(stack.some(trainer.sample), settings)
            plausible = None if self._plausible is None else self._plausible.tensor()
            done = {"learners": learners, "template": self._template, "plausible": plausible}
            poses = self._settle(stack, settings, Saved(job, trainer.state() | done, state))[0]
            poses[trainer.sample] = learners
        return poses

    def _align_learners(self, stack: Stack, settings: Self) -> torch.Tensor:
        start = torch.as_tensor(stack.start.copy()).float()
        found, scores = self._settle(stack, settings)
        if not settings.refine:
            return found
        with few_threads(stack.frame):
            refined, template, plausible = self._refine(stack, settings, start, found, scores)
            sound = self._last_sound(stack, [start, found, refined])
        if sound is refined:
            self._template, self._plausible = template, plausible
        return sound

    def _learnt(self, trainer: Trainer) -> None:
        self.aligner_, self.autoencoder_ = trainer.aligner.cpu().eval(), trainer.autoencoder.cpu().eval()
        self._template = trainer.template
        self._objects, self._plausible = trainer.objects, trainer.likely()
        matching = trainer.scores[trainer.good] if trainer.settings.running_reference else trainer.scores
        self._bars = Bars(float(matching.quantile(0.25)), float(matching.quantile(0.1)))

    # ---- all images, old or new

    def _settle(self, stack: Stack, settings: Self, saved: Saved | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Every image's pose and its score, from where an interrupted run left off."""
        found, scores = torch.empty(len(stack), 3, 3), torch.empty(len(stack))
        done = 0 if saved is None else saved.fill(found, scores)
        matcher = Matcher(self._template, objects=self._objects, plausible=self._plausible)
        settler = Settler(settings, self.aligner_, matcher, self._bars)

        @torch.no_grad()
        def settle(some: tuple[np.ndarray, torch.Tensor, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
            part, images, masks = some
            return settler.settle(Views(look(images, self._objects), masks), torch.as_tensor(stack.start[part]).float())

        with few_threads(stack.frame) as free:
            # The few that are tried again should still fill a batch. The same runs for any number of threads: sums
            # over other runs differ in their last bits.
            parts = [part for part in chunks(stack, 4, multiple=4) if part[-1] >= done]
            read = ((part, stack.images(part), stack.masks(part)) for part in parts)
            for part, settled in zip(parts, in_order(settle, read, free), strict=True):
                found[part], scores[part] = settled
                if saved is not None:
                    saved.keep(found, scores, int(part[-1]) + 1)
        return found, scores

    def _refine(
        self, stack: Stack, settings: Self, start: torch.Tensor, found: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Plausible | None]:
        """Joint Gauss-Newton towards the running mean of the images that match, in the gauge of the start.

        Gives the poses, that mean, and for photographs which poses are plausible now.
        """
        ink = total_ink(stack) if self._objects and can_scale(settings.motion) else None
        gauge = Gauge(start, stack.frame, ink, band=_ONE_SIZE) if settings.guards else None
        middle = float(scores.median())
        keep = scores >= (min(self._bars.doubtful - 0.1, middle) if self._objects else min(0.5 * middle, middle))
        appearance = None if self._objects else oriented_gradients
        stages = [(settings.motion, 0.0)] if self._objects else _unlocked(settings.motion, stack.frame)
        for number, (motion, sigma) in enumerate(stages, 1):
            passes = SetPass(
                stack,
                GaussNewton(motion, stack.frame, robust=None if self._objects else EDGE_NOISE),
                sigma,
                gauge=gauge,
                appearance=appearance,
                keep=keep,
                plausible=not self._objects,
            )
            passes.target = passes.look(found)
            for _ in range(settings.refine_steps if number == len(stages) else settings.refine_steps // 4):
                found, moved, _ = passes.step(found)
                if moved < 0.01:
                    break
        if self._objects:
            return found, passes.target["mean"], None
        plausible = passes.likely(found)
        passes = SetPass(stack, passes.newton, gauge=gauge, appearance=appearance, keep=keep)
        return found, passes.look(found)["mean"], plausible

    def _last_sound(self, stack: Stack, stages: list[torch.Tensor]) -> torch.Tensor:
        """The last stage whose energy ratio is sound; if none is, the last one, which is then measured as collapsed."""
        if not self._objects or not self.guards:
            return stages[-1]
        source = total_ink(stack)
        for poses in reversed(stages):
            energy = _ink(stack, poses) / source
            if _SOUND_ENERGY[0] <= energy <= _SOUND_ENERGY[1]:
                return poses
            log.warning(
                "a stage of the deep method left the energy ratio at %.2f; going back to the one before", energy
            )
        return stages[-1]

    def _align_new(self, stack: Stack) -> torch.Tensor:
        return self._settle(stack, self.effective())[0]

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        networks = (("aligner", self.aligner_), ("autoencoder", self.autoencoder_))
        state = {f"{name}.{key}": value for name, net in networks for key, value in net.state_dict().items()}
        numbers = torch.tensor([self._bars.doubtful, self._bars.lost, float(self._objects)], dtype=torch.float64)
        state |= {"template": self._template, "numbers": numbers}
        if self._plausible is not None:
            state["plausible"] = self._plausible.tensor()
        return state

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        settings, layout = self.effective(), self.layout_
        self._template = state["template"]
        doubtful, lost, objects = state["numbers"].tolist()
        self._bars, self._objects = Bars(doubtful, lost), bool(objects)
        self._plausible = _plausible(state.get("plausible"))
        channels = int(self._template.shape[0])
        networks = make_networks(settings.preset, channels, layout.frame, settings.motion, settings.code_size)
        for name, net in zip(("aligner", "autoencoder"), networks, strict=True):
            prefix = f"{name}."
            weights = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            try:
                net.load_state_dict(weights)
            except RuntimeError as error:
                raise CongealError(
                    f"the model file's {name} does not fit its own description: it is damaged"
                ) from error
        self.aligner_, self.autoencoder_ = networks[0].eval(), networks[1].eval()


class Saved:
    """What a long pass over the images has done so far, kept in the job's checkpoint beside what was learnt."""

    def __init__(self, job: Job, learnt: dict[str, Any], state: dict[str, Any] | None) -> None:
        self.job, self.learnt = job, learnt
        self.before = state if state is not None and "settled" in state else None
        self.progress: Progress | None = None

    def fill(self, found: torch.Tensor, scores: torch.Tensor) -> int:
        """Put back what an earlier run saved; how many images that is."""
        done = 0 if self.before is None else len(self.before["settled"])
        if self.before is not None:
            found[:done], scores[:done] = self.before["settled"], self.before["scores"]
            self.before = None
        self.progress = self.job.stage("aligning", len(found), done)
        return done

    def keep(self, found: torch.Tensor, scores: torch.Tensor, done: int) -> None:
        """Everything before `done` is final; write it when it is time."""
        if self.progress is not None:
            self.progress.update(done - self.progress.done)
        if self.job.due():
            self.job.save(self.learnt | {"settled": found[:done].clone(), "scores": scores[:done].clone()})


def _unlocked(motion: str, frame: Size) -> list[tuple[str, float]]:
    """Motions for photographs, stiff ones first, each with its blur in frame pixels."""
    last_blur = photo_blur(frame)
    stages = [
        ("similarity", 2.7 * last_blur),
        ("similarity", 1.7 * last_blur),
        ("affine", last_blur),
        ("homography", last_blur),
    ]
    last = MOTIONS.index(motion)
    return [(MOTIONS[min(MOTIONS.index(name), last)], sigma) for name, sigma in stages]


def _ink(stack: Stack, poses: torch.Tensor) -> float:
    return sum(float(warp(stack.images(part), poses[part], stack.frame).sum()) for part in chunks(stack))


def _plausible(saved: torch.Tensor | None) -> Plausible | None:
    return None if saved is None else Plausible(*saved)


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise CongealError(f"there is no device '{name}' here: use auto, cpu, cuda or mps") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
