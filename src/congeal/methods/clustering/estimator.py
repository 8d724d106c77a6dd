"""`CongealGroups`: cluster a set into groups, and align each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.evaluation import blank
from congeal.execution.threads import single_torch_thread
from congeal.geometry import MOTIONS
from congeal.images import Layout, Stack
from congeal.images.formats.writers import check_group_name
from congeal.methods.base import Alignment, Method
from congeal.methods.checks import Count, Range
from congeal.methods.clustering.exemplars import GroupModel
from congeal.methods.clustering.group_fit import GroupCheckpoint, GroupFit, pooled_quality
from congeal.methods.clustering.sample_clustering import (
    NOT_LISTED,
    SampleClustering,
    cluster_sample,
    describe_choice,
    read_group_table,
    suggest_features,
)
from congeal.methods.fit_context import FitContext, FitResult
from congeal.methods.measure import BLANK, OK, OUTLIER
from congeal.methods.registry import method_class
from congeal.methods.semantic.extractors import FeatureTrust, is_semantic
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures, robust_features
from congeal.transforms.transforms import NO_GROUP


class Assignment(NamedTuple):
    """Group (−1 for none), likeness to it, margin to the next best one and intensity sum of every image, (n,) each."""

    group: np.ndarray
    likeness: np.ndarray
    margin: np.ndarray
    intensity: np.ndarray


@dataclass(frozen=True)
class GroupedPoses(FitResult):
    """Poses of a set in groups, with the assignment of each image and the fit of each group."""

    group: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    margin: np.ndarray = field(default_factory=lambda: np.zeros(0))
    fits: tuple[GroupFit, ...] = ()


@dataclass(kw_only=True, eq=False)
class CongealGroups(FeatureTrust, Method):
    """Clusters a set with several kinds of objects into groups, and aligns each group by itself.

    Images are compared with each other once aligned, so that the pose does not matter. The graph of their nearest
    neighbours is partitioned by spectral clustering. Each group is then aligned by a method for one kind, with a gauge
    and metrics of its own. Images that are like no others belong to no group.

    Parameters
    ----------
    n_groups : int or "auto"
        Number of groups; "auto" estimates it.
    method : str
        Name of the method that aligns each group, one that can align new images.
    method_params : dict, optional
        Its hyper-parameters, by name.
    fit_sample : int
        Groups are found among at most this many images; all others are compared with them.
    most_groups : int
        The largest number of groups that "auto" tries.
    table : str, optional
        A CSV file with the columns id and group, which assigns images to groups: only images that it does not list are
        clustered.
    features : str, optional
        Compare images by the features of a network: "lite0", a file MODULE.pt or MODEL.onnx, or "timm:NAME"; unless
        given, by their pixels or edges once aligned.
    motion, size, align_on, kind, guards, random_state
        As for every method; "auto" lets each group choose its motion, if the method can.

    Attributes
    ----------
    labels_ : (n,) array of int
        Group of every image that could be read: 0 is the largest group, −1 none.
    margins_ : (n,) array
        Likeness to the own group less that to the next best; less than zero: another group is more alike.
    templates_ : (K, h, w) or (K, h, w, C) array
        The mean of each group as the frame shows it, in [0, 1].
    sizes_ : list of int
        Images in each group.
    names_ : list of str
        Names of the groups: their numbers, or the names of the table.
    cost_ : float
        Mean conductance of the groups, the share of neighbours in another group: of several fits the lowest is best.
    tree_ : list of (int, int, float)
        Dendrogram of the groups, most alike first: a merge is (one, other, share of neighbours in common). K + i is
        the result of merge i.
    groups_ : list of dict
        Metrics and verdict of each group.
    transforms_, quality_, history_, stack_from_frame_, layout_, random_state_, decisions_
        As for every method.
    """

    n_groups: Annotated[int, Range(least=1)] | Literal["auto"] = "auto"
    method: str = "joint"
    method_params: dict | None = None
    motion: str = "auto"
    fit_sample: Annotated[int, Range(least=2)] = 10_000
    most_groups: Count = 20
    table: str | None = None
    features: str | None = None

    name: ClassVar[str] = "groups"
    motions: ClassVar[tuple[str, ...]] = (*MOTIONS, "auto")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.table is not None and self.n_groups != "auto":
            raise CongealError("groups: a table says how many groups there are; leave out n_groups")
        if self.features is not None and not is_semantic(self.features):
            raise CongealError(
                f"groups: features are those of a network, lite0, MODULE.pt, MODEL.onnx or timm:NAME, not "
                f"{self.features!r}"
            )
        self._inner_method("object").check_parameters()

    def _features(self, kind: str) -> ImageFeatures:
        return robust_features(kind)

    def _inner_method(self, kind: str) -> Method:
        """The method that aligns one group."""
        if self.method == self.name or not method_class(self.method).can_transform():
            raise CongealError(f"groups: '{self.method}' cannot align new images, which groups need; use joint or lsc")
        model = method_class(self.method)()
        motion = model.motion if self.motion == "auto" else self.motion
        shared = {"motion": motion, "size": self.size, "align_on": self.align_on, "guards": self.guards}
        seed = getattr(self, "random_state_", self.random_state)
        return model.set_params(**shared, kind=kind, random_state=seed, **(self.method_params or {}))

    # ---- fitting

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> GroupedPoses:
        saved = context.load() or {}
        found, assignment, beside = self._find_groups(stack, image_features, context, saved)
        self._models: list[Method | None] = [
            self._inner_method(image_features.kind) for _ in range(found.model.n_groups)
        ]
        fits = self._align_groups(stack, self._models, assignment.group, context, saved, beside, fit=True)
        self._templates = torch.stack([fit.template(stack, self.random_state_) for fit in fits])
        self.labels_, self.margins_ = assignment.group.astype(np.int32), assignment.margin.astype(np.float64)
        self.sizes_ = [len(fit.rows) for fit in fits]
        self.groups_ = [
            fit.summary(number, self.names_[number], found.conductances[number]) for number, fit in enumerate(fits)
        ]
        given, by_features = self.table is not None, self.features is not None
        chosen = describe_choice(len(fits), found.curve, found.conductances, given=given, features=by_features)
        if not by_features and not given and self.n_groups != 1:
            chosen |= suggest_features(chosen, image_features.kind)
        return self._merge_groups(stack, image_features, assignment, fits, {"groups": chosen | {"tree": found.tree}})

    def sort(self, images: Any, *, init: Any = None) -> np.ndarray:
        """(N,) the groups of a set alone, without aligning any of them; `cost_` and `tree_` are set.

        The model is not fitted by it: there is nothing to align new images to.
        """
        self.check_parameters()
        stack = images if isinstance(images, Stack) else self._prepare(images, init)
        worker = self._worker(0 if self.random_state is None else int(self.random_state))
        kind = stack.kind if self.kind == "auto" else self.kind
        found, assignment, _ = worker._find_groups(stack, worker._features(kind), FitContext(self.name), {})
        self.cost_, self.tree_ = found.cost, found.tree
        return _for_all_images(stack, assignment.group)

    def _find_groups(
        self, stack: Stack, image_features: ImageFeatures, context: FitContext, saved: Mapping[str, Any]
    ) -> tuple[SampleClustering, Assignment, dict[str, Any]]:
        """The clusters of the sample, the assignment of all images, and both as a checkpoint stores them."""
        count = self.n_groups
        if isinstance(count, int) and count > len(stack):
            raise CongealError(f"{stack.source.name} has {len(stack)} usable images, which cannot make {count} groups")
        ids = [stack.source.id(i) for i in stack.kept]
        given = None if self.table is None else read_group_table(self.table, ids)
        with torch.no_grad():
            if "clustering" in saved:
                found = SampleClustering.restore(saved["clustering"])
            else:
                found = cluster_sample(
                    stack,
                    image_features,
                    count,
                    given=None if given is None else given.group,
                    sample=self.fit_sample,
                    most_groups=self.most_groups,
                    random_state=self.random_state_,
                    extractor=None if self.features is None else self.extractor(),
                )
            model = self._group_model = found.model
            self.names_ = list(given.names) if given else [str(k) for k in range(model.n_groups)]
            self.cost_, self.tree_ = found.cost, found.tree
            beside: dict[str, Any] = {"clustering": found.state()}
            assignment = self._assign_all(stack, image_features, found.rows, context, beside)
        group, likeness, margin, intensity = assignment
        self._median_intensity = float(np.median(intensity))
        # An exemplar keeps the group of the clustering, even where another is more similar: its margin is negative.
        margin[found.rows] *= np.where(group[found.rows] == model.labels, 1, -1)
        group[likeness < model.min_likeness] = NO_GROUP
        group[found.rows], group[found.outliers] = model.labels, NO_GROUP
        group[self._blank(image_features, intensity)] = NO_GROUP
        if given is not None:
            listed = given.group != NOT_LISTED
            margin[listed & (given.group != group) & (margin > 0)] *= -1
            group[listed] = given.group[listed]
        return found, assignment, beside

    def _blank(self, image_features: ImageFeatures, intensity: np.ndarray) -> np.ndarray:
        """(n,) bool: images that show nothing."""
        if not image_features.keeps_intensity:
            return np.zeros(len(intensity), dtype=bool)
        return blank(intensity, self._median_intensity)

    def _assign_all(
        self,
        stack: Stack,
        image_features: ImageFeatures,
        exemplars: np.ndarray,
        context: FitContext,
        beside: dict[str, Any],
    ) -> Assignment:
        """Assign every image, and store that in `beside`; exemplars: positions of those in the stack."""
        n = len(stack)
        own = np.full(n, -1)
        own[exemplars] = np.arange(len(exemplars))
        outputs = torch.zeros(n, dtype=torch.long), torch.zeros(n), torch.zeros(n), torch.zeros(n, dtype=torch.float64)
        extractor = self.extractor() if self.features is not None and len(exemplars) < n else None

        model, position = self._group_model, torch.as_tensor(own)
        _ = model.exemplars.unit_vectors, model.exemplars.linearisations  # cached before threads use them

        def work(part: np.ndarray) -> tuple[torch.Tensor, ...]:
            return model.assign_images(stack, part, position[part], image_features, extractor)

        with single_torch_thread() as threads:
            context.map_images(work, chunks(stack), *outputs, state=beside, threads=threads)
        beside["placed"] = (n, [output.clone() for output in outputs])
        return Assignment(*(output.numpy() for output in outputs))

    def _align_groups(
        self,
        stack: Stack,
        models: list[Method | None],
        group: np.ndarray,
        context: FitContext,
        saved: Mapping[str, Any],
        beside: Mapping[str, Any],
        *,
        fit: bool,
    ) -> list[GroupFit]:
        """Align every group by its method, fitted to it if `fit`; finished ones are in the checkpoint."""
        done: dict[int, Any] = dict(saved.get("done", {}))
        fits: list[GroupFit] = []
        for number, model in enumerate(models):
            rows = np.flatnonzero(group == number)
            if model is not None and number in done:
                fits.append(GroupFit(**done[number]["fit"]))
                if fit:
                    self._restore_inner(model, done[number]["model"], replace(stack.layout, kind=model.kind))
            elif model is None or len(rows) < (2 if fit else 1):
                fits.append(GroupFit.unaligned(rows, stack, OK))
                models[number] = None if fit else model
            else:
                checkpoint = GroupCheckpoint(context, number, {**beside, "done": done}, saved)
                fits.append(GroupFit.of(model, rows, stack, checkpoint, context.save_every, fit=fit))
                done[number] = {"fit": fits[-1].state(), "model": model._state() if fit else {}}
                if fit:
                    likeness = (fits[-1].about["quality"] or {}).get("likeness_after")
                    likeness = float("nan") if likeness is None else float(likeness)
                    context.step(number + 1, len(models), images=len(rows), likeness=likeness)
                if context.due():
                    context.save({**beside, "done": done})
        return fits

    def _restore_inner(self, model: Method, state: Mapping[str, torch.Tensor], layout: Layout) -> Method:
        model.layout_, model.random_state_ = layout, self.random_state_
        model._restore(state)
        return model

    def _merge_groups(
        self,
        stack: Stack,
        image_features: ImageFeatures,
        assignment: Assignment,
        fits: list[GroupFit],
        decisions: Mapping[str, Mapping[str, Any]],
    ) -> GroupedPoses:
        """The poses of all groups, and of images in no group, in the order of the stack."""
        group, likeness, margin, intensity = assignment
        rows = np.flatnonzero(group == NO_GROUP)
        rest = GroupFit.unaligned(rows, stack, OUTLIER)
        rest.numbers[0] = torch.as_tensor(likeness[rows]).double()
        rest.numbers[1, torch.as_tensor(self._blank(image_features, intensity[rows]))] = BLANK
        poses = torch.empty(len(stack), 3, 3)
        for fit in (*fits, rest):
            poses[fit.rows] = fit.poses
        return GroupedPoses(
            poses,
            max((fit.about["motion"] for fit in fits), key=MOTIONS.index),
            tuple(sorted({size for fit in fits for size in fit.about["levels"]})),
            any(fit.about["trained"] for fit in fits),
            None,
            decisions,
            group=group.astype(np.int32),
            margin=margin.astype(np.float64),
            fits=(*fits, rest),
        )

    def _measured(self, stack: Stack, answer: torch.Tensor | FitResult, kind: str, *, verbose: bool) -> Alignment:
        assert isinstance(answer, GroupedPoses)
        numbers = torch.empty(4, len(stack), dtype=torch.float64)
        for fit in answer.fits:
            numbers[:, fit.rows] = fit.numbers
        score, status, outside, error = numbers.numpy()
        poses = answer.poses.numpy()
        transforms = stack.to_transforms(
            poses,
            score,
            status.astype(np.uint8),
            outside,
            error,
            group=answer.group,
            margin=answer.margin,
            group_names=self.names_ if _has_own_names(self.names_) else None,
        )
        quality = pooled_quality(answer.fits, kind, len(stack), int((status == OK).sum()))
        # The fits are in the transforms now; a million poses twice would be 72 MB.
        return Alignment(transforms, quality, poses, replace(answer, fits=()))

    # ---- new images

    def predict(self, images: Any, *, init: Any = None) -> np.ndarray:
        """(N,) the group of each image, −1 for none; images are not aligned within their groups, which takes longer."""
        self._check_fitted()
        stack = images if isinstance(images, Stack) else self._prepare(images, init, self.layout_)
        image_features = self._features(self.layout_.kind or stack.kind)
        return _for_all_images(stack, self._assign_new(stack, image_features, FitContext(self.name), {}).group)

    def _assign_new(
        self, stack: Stack, image_features: ImageFeatures, context: FitContext, beside: dict[str, Any]
    ) -> Assignment:
        """Assign new images; those that are unlike all groups or show nothing are in none."""
        with torch.no_grad():
            found = self._assign_all(stack, image_features, np.zeros(0, dtype=np.int64), context, beside)
        nowhere = (found.likeness < self._group_model.min_likeness) | self._blank(image_features, found.intensity)
        return found._replace(group=np.where(nowhere, NO_GROUP, found.group))

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> GroupedPoses:
        saved, beside = context.load() or {}, {}  # type: Mapping[str, Any], dict[str, Any]
        assignment = self._assign_new(stack, image_features, context, beside)
        fits = self._align_groups(stack, self._models, assignment.group, context, saved, beside, fit=False)
        return self._merge_groups(stack, image_features, assignment, fits, {})

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        state = {f"groups.{name}": tensor for name, tensor in self._group_model.state().items()}
        state["templates"] = self._templates
        state["numbers"] = torch.tensor([self._median_intensity, self.cost_], dtype=torch.float64)
        state["sizes"] = torch.tensor(self.sizes_)
        state["tree"] = torch.tensor(self.tree_, dtype=torch.float64).reshape(-1, 3)
        if _has_own_names(self.names_):
            state["names"] = torch.frombuffer(bytearray("\n".join(self.names_).encode()), dtype=torch.uint8)
        for number, model in enumerate(self._models):
            if model is not None:
                state |= {f"group{number}.{name}": tensor for name, tensor in model._state().items()}
        return state

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        def under(prefix: str) -> dict[str, torch.Tensor]:
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

        self._group_model = GroupModel.restore(under("groups."))
        self._features_from_file = self.features not in (None, "lite0")
        self._templates, self.sizes_ = state["templates"], state["sizes"].tolist()
        self._median_intensity, self.cost_ = state["numbers"].tolist()
        self.tree_ = [(int(one), int(other), share) for one, other, share in state["tree"].tolist()]
        self.names_ = [str(k) for k in range(self._group_model.n_groups)]
        if "names" in state:
            words = bytes(state["names"].tolist()).decode(errors="replace").split("\n")
            self.names_ = [check_group_name(word) for word in words]  # they become names of folders
            if len(self.names_) != self._group_model.n_groups:
                raise CongealError(f"the model has {len(self.names_)} names for {self._group_model.n_groups} groups")
        layout = replace(self.layout_, kind=self.layout_.kind or "object")
        self._models = []
        for number in range(self._group_model.n_groups):
            own = under(f"group{number}.")
            model = self._inner_method(layout.kind or "object")
            self._models.append(self._restore_inner(model, own, layout) if own else None)

    @property
    def templates_(self) -> np.ndarray:
        """(K, h, w) or (K, h, w, C): the mean of each group as the frame shows it, in [0, 1]."""
        self._check_fitted()
        pictures = self._templates.movedim(1, -1).numpy()
        return pictures[..., 0] if pictures.shape[-1] == 1 else pictures


def _for_all_images(stack: Stack, group: np.ndarray) -> np.ndarray:
    """(N,) groups of all images of the source, those that could not be read included."""
    labels = np.full(len(stack.source), NO_GROUP, dtype=np.int32)
    labels[stack.kept] = group
    return labels


def _has_own_names(names: Sequence[str]) -> bool:
    """Whether groups have names other than their numbers."""
    return list(names) != [str(k) for k in range(len(names))]
