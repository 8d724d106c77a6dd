"""The deep method as an estimator: parameters, fitting by the recipe, placing new images, the model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from congeal.errors import CongealError
from congeal.geometry import MOTIONS
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, NotNegative, Positive, Range, Reference, Share
from congeal.methods.deep.kept import guide_from_tensors, guide_tensors
from congeal.methods.deep.networks import load_networks, recipe_networks
from congeal.methods.deep.paper import PaperCongealing
from congeal.methods.deep.recipe import follow_recipe, place, settings_of
from congeal.methods.deep.settle import SettleSettings
from congeal.methods.device import find_device
from congeal.methods.found import Found
from congeal.methods.job import Job
from congeal.solvers.appearance import Appearance, PhotoEdges, lasting_appearance, plain_appearance
from congeal.solvers.extractors import PLAIN
from congeal.solvers.reference import check_one_image


@dataclass(kw_only=True, eq=False)
class DeepCongealing(Method):
    """A spatial transformer trained on the set itself, then refined; the default method.

    The networks and losses are those of deep penalised reconstruction congealing (Annunziata, Sagonas and Calì, ICCV
    2019), made robust; `recipe.py` says how, docs/methods.md what differs from the paper. `paper_mnist` and `paper_lfw`
    make the method as printed.

    Parameters
    ----------
    motion : str
        "auto" (the simplest that suffices), translation, rigid, similarity, affine or homography.
    features : str
        What is compared: "auto" (pixels of objects on empty ground, edges of photographs), "edges" or "pixels".
    train : str
        "auto" (when tries from other poses help, so that a network has something to learn), "always" or "never".
    finest : int or None
        Longer side of the largest pictures that poses are sharpened in; None for the originals' own size.
    reference : str, int, path or array
        What alignment starts from: "auto" (a typical image), a position, a file or an array.
    steps, batch_size, learning_rate
        Of training, by Adam with warm-up and a cosine.
    distortion_weight, complexity_weight : float
        Of D and of C (λ).
    capacity_penalty, penalty_power, code_size
        γ, k and |z| of C.
    complexity_ramp : (float, float)
        C's weight grows from zero between these shares of training, while the auto-encoder learns to rebuild.
    train_apart : bool
        The auto-encoder learns on detached images; the aligner sees it frozen.
    remove_common_mode : bool
        C gives no gradient for moving or shrinking all images together.
    normalise_ink : bool
        D and C are divided by ink, so that shrinking the object does not lower them.
    self_supervision : float
        Weight of S: undoing known random warps of images that already match.
    max_misalignment : float
        Largest corner noise of those warps, as a share of the frame's side.
    running_reference : bool
        The template is the mean of the images that match, renewed as training goes on; off keeps the reference image.
    refreshes : int
        The template is renewed after every 1 / (refreshes + 1) of the steps.
    tolerance : float
        Training stops early when the mean match changes by less than this between two looks, twice.
    fit_sample : int
        The aligner learns from at most this many images; all are aligned.
    passes : int
        How often the aligner is applied, each time from its last answer.
    restarts : int
        Images that match badly are tried again from this many perturbed poses.
    refine : bool
        Gauss-Newton steps after the net; off shows the raw net.
    refine_steps : int
        How many, at most.
    device : str
        "auto", "cpu", "cuda" or "mps".

    Attributes
    ----------
    aligner_, autoencoder_ : torch.nn.Module or None
        The trained networks; None if none was trained.
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method.
    """

    motion: str = "auto"
    train: str = "auto"
    features: str = "auto"
    finest: Count | None = None
    reference: Reference = "auto"
    steps: CountOrZero = 600
    batch_size: Count = 128
    learning_rate: Positive = 1e-3
    distortion_weight: NotNegative = 1.0
    complexity_weight: NotNegative = 1.0
    capacity_penalty: NotNegative = 1.0
    penalty_power: NotNegative = 1.0
    code_size: Count = 8
    complexity_ramp: tuple[Share, Share] = (0.1, 0.4)
    train_apart: bool = True
    remove_common_mode: bool = True
    normalise_ink: bool = True
    self_supervision: NotNegative = 1.0
    max_misalignment: Share = 0.35
    running_reference: bool = True
    refreshes: CountOrZero = 6
    tolerance: NotNegative = 0.001
    fit_sample: Annotated[int, Range(least=2)] = 6000
    passes: Count = 2
    restarts: CountOrZero = 16
    refine: bool = True
    refine_steps: CountOrZero = 40
    device: str = "auto"

    name: ClassVar[str] = "deep"
    motions: ClassVar[tuple[str, ...]] = (*MOTIONS, "auto")

    @staticmethod
    def paper_mnist(**overrides: Any) -> PaperCongealing:
        """The method as printed, with the paper's MNIST networks; overrides are parameters of `PaperCongealing`."""
        return PaperCongealing(**PAPER_MNIST | overrides)

    @staticmethod
    def paper_lfw(**overrides: Any) -> PaperCongealing:
        """The method as printed, with the paper's networks for 250×250 faces."""
        return PaperCongealing(**PAPER_LFW | overrides)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.train not in TRAIN:
            raise CongealError(f"{self.name}: train must be one of {', '.join(TRAIN)}, not {self.train!r}")
        if self.features not in PLAIN:
            raise CongealError(
                f"{self.name}: features must be one of {', '.join(PLAIN)}, not {self.features!r}; "
                "those of a network belong to the method semantic"
            )
        check_one_image(self.reference, self.name)
        find_device(self.device)

    def _appearance(self, kind: str) -> Appearance:
        return {"edges": PhotoEdges(), "pixels": plain_appearance(kind)}.get(self.features) or lasting_appearance(kind)

    def _align(self, stack: Stack, appearance: Appearance, job: Job) -> Found:
        learnt = follow_recipe(stack, appearance, self, job, find_device(self.device))
        self._guide, trained = learnt.guide, learnt.trained
        self.aligner_ = None if trained is None else trained.aligner
        self.autoencoder_ = None if trained is None else trained.autoencoder
        return self._found(stack, learnt.poses, learnt.error, learnt.decisions)

    def _align_new(self, stack: Stack, appearance: Appearance, job: Job) -> Found:
        return self._found(stack, *place(stack, self._guide, settings_of(SettleSettings, self), job), {})

    def _found(
        self, stack: Stack, poses: torch.Tensor, error: torch.Tensor, decisions: Mapping[str, Mapping[str, Any]]
    ) -> Found:
        guide = self._guide
        base = max(stack.frame)
        sizes = (base, *(max(level.frame) for level in guide.levels if max(level.frame) > base))
        return Found(poses, guide.motion, sizes, self.aligner_ is not None, error, decisions)

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        state = guide_tensors(self._guide)
        state["motion"] = torch.tensor(MOTIONS.index(self._guide.motion))
        if self.aligner_ is not None and self.autoencoder_ is not None:
            networks = (("aligner", self.aligner_), ("autoencoder", self.autoencoder_))
            state |= {f"{name}.{key}": value for name, net in networks for key, value in net.state_dict().items()}
        return state

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        kind = self.layout_.kind or ("object" if state["numbers"].tolist()[2:3] == [1.0] else "photo")  # 0.1: a number
        self.motion_ = MOTIONS[int(state["motion"])] if "motion" in state else self.motion
        largest = MOTIONS[-1] if self.motion == "auto" else self.motion
        self.aligner_ = self.autoencoder_ = None
        if any(name.startswith("aligner.") for name in state):
            channels = int(state["template"].shape[0])
            networks = recipe_networks(channels, self.layout_.frame, largest, self.code_size)
            load_networks(networks, state)
            self.aligner_, self.autoencoder_ = networks[0].eval(), networks[1].eval()
        self._guide = guide_from_tensors(state, self.motion_, self._appearance(kind), self.aligner_)


TRAIN = ("auto", "always", "never")
"""When a network is trained."""
PAPER_MNIST: dict[str, Any] = {"networks": "mnist", "size": 28}
PAPER_LFW: dict[str, Any] = {"networks": "lfw", "size": 250, "batch_size": 16}
"""What the paper prints for each data set, where it differs from `PaperCongealing`'s own parameters."""
