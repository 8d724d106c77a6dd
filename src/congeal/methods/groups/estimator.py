"""`CongealGroups`: sort a pile into groups, and align each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch

from congeal.distributed import Crew
from congeal.errors import CongealError
from congeal.geometry import MOTIONS
from congeal.images import Layout, Stack
from congeal.images.grouped import check_name
from congeal.methods.base import Alignment, Method
from congeal.methods.checks import Count, Range
from congeal.methods.found import Found
from congeal.methods.groups.aligning import Nested, Part, fitted_part, joint_quality, richest, template_of
from congeal.methods.groups.sorting import Sorted, Sorter, advice, choice, placing, sort_given, sort_sample
from congeal.methods.groups.table import UNKNOWN, Given, read_given
from congeal.methods.job import Job
from congeal.methods.measure import BLANK, OK, OUTLIER
from congeal.methods.registry import method_class
from congeal.metrics import blank
from congeal.solvers.appearance import Appearance, lasting_appearance
from congeal.solvers.extractors import Extractor, is_semantic, open_extractor
from congeal.solvers.streaming import chunks
from congeal.transforms.transforms import NO_GROUP


@dataclass(frozen=True)
class GroupsFound(Found):
    """Poses of a pile, with the group of each image (−1 for none), its margin, and the groups one by one."""

    group: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    margin: np.ndarray = field(default_factory=lambda: np.zeros(0))
    likeness: np.ndarray = field(default_factory=lambda: np.zeros(0))
    parts: tuple[Part, ...] = ()
    outside: Part | None = None


@dataclass(kw_only=True, eq=False)
class CongealGroups(Method):
    """Sorts a pile with several kinds of things into groups, and aligns each group by itself.

    Images are compared with each other once aligned, so that the same thing in another pose is the same thing. The set
    is cut where few images have their nearest neighbours on the other side. Each group is then aligned by a method for
    one kind, with a gauge and numbers of its own. Images that are like no others belong to no group.

    Parameters
    ----------
    n_groups : int or "auto"
        How many groups; "auto" finds out.
    method : str
        What aligns each group: a method that can align new images.
    method_params : dict, optional
        Its hyper-parameters, by name.
    fit_sample : int
        Groups are found among at most this many images; all others are compared with them.
    most_groups : int
        The largest number of groups that "auto" tries.
    table : str, optional
        A CSV file with the columns id and group, which says what is in which group: nothing is sorted but images that
        it does not list.
    features : str, optional
        Compare images by what a network sees in them: "lite0", a file MODULE.pt or MODEL.onnx, or "timm:NAME"; unless
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
        What the groups are called: their numbers, or the names of the table.
    cost_ : float
        Share of neighbours that are in another group, mean over groups: of several fits the lowest is best.
    tree_ : list of (int, int, float)
        How groups join, most alike first: a merge is (one, other, share of neighbours in common). K + i is merge i.
    groups_ : list of dict
        Numbers and verdict of each group.
    transforms_, quality_, history_, stack_from_frame_, layout_, random_state_, decisions_
        As for every method.
    """

    n_groups: Annotated[int, Range(least=1)] | Literal["auto"] = "auto"
    """How many groups; "auto" finds out."""
    method: str = "deep"
    """What aligns each group."""
    method_params: dict | None = None
    """Hyper-parameters of that method, by name."""
    motion: str = "auto"
    fit_sample: Annotated[int, Range(least=2)] = 10_000
    """Groups are found among at most this many images."""
    most_groups: Count = 20
    """The largest number of groups that "auto" tries."""
    table: str | None = None
    """A CSV file with the columns id and group, in place of sorting."""
    features: str | None = None
    """Compare images by what a network sees in them."""

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
        self._inside("object").check_parameters()

    def set_params(self, **params: Any) -> Self:
        """Change hyper-parameters; `features` given again after a load says that they are trusted."""
        if "features" in params:
            self._named_by_file = False
        return super().set_params(**params)

    def _extractor(self) -> Extractor | None:
        """Of the features, if there are any; a model file cannot decide which program is run."""
        if self.features is None:
            return None
        if getattr(self, "_named_by_file", False):
            raise CongealError(
                f"this model was sorted by features of {self.features!r}, a program that its file must not choose: "
                "load it from Python and give them again, with set_params(features=…)"
            )
        return open_extractor(self.features)

    def _appearance(self, kind: str) -> Appearance:
        return lasting_appearance(kind)

    def _inside(self, kind: str) -> Method:
        """The method that aligns one group."""
        if self.method == self.name or not method_class(self.method).can_transform():
            raise CongealError(f"groups: '{self.method}' cannot align new images, which groups need; use deep or lsc")
        model = method_class(self.method)()
        motion = model.motion if self.motion == "auto" else self.motion
        shared = {"motion": motion, "size": self.size, "align_on": self.align_on, "guards": self.guards}
        seed = getattr(self, "random_state_", self.random_state)
        return model.set_params(**shared, kind=kind, random_state=seed, **(self.method_params or {}))

    # ---- fitting

    def _align(self, stack: Stack, appearance: Appearance, job: Job) -> GroupsFound:
        saved = job.load() or {}
        found, placed, beside = self._sort(stack, appearance, job, saved)
        group, _, margin, _ = placed
        parts = self._fitted_parts(stack, appearance, group, job, saved, beside)
        self._templates = torch.stack([template_of(stack, part, self.random_state_) for part in parts])
        self.labels_, self.margins_ = group.astype(np.int32), margin.astype(np.float64)
        self.sizes_ = [len(part.rows) for part in parts]
        self.groups_ = [
            _about(number, self.names_[number], part, found.leaks[number]) for number, part in enumerate(parts)
        ]
        by_features = self.features is not None
        chosen = choice(
            found.sorter.n_groups, found.curve, found.leaks, given=self.table is not None, features=by_features
        )
        if not by_features and self.table is None and self.n_groups != 1:
            chosen |= advice(chosen, appearance.kind)
        decisions = {"groups": chosen | {"tree": found.tree}}
        return self._whole(stack, appearance, placed, parts, decisions)

    def sort(self, images: Any, *, init: Any = None) -> np.ndarray:
        """(N,) the groups of a pile alone, without aligning any of them; `cost_` and `tree_` are those of the cut.

        The model is not fitted by it: there is nothing to align new images to.
        """
        self.check_parameters()
        stack = images if isinstance(images, Stack) else self._prepare(images, init)
        worker = self._worker(0 if self.random_state is None else int(self.random_state))
        kind = stack.kind if self.kind == "auto" else self.kind
        found, placed, _ = worker._sort(stack, worker._appearance(kind), Job(self.name), {})
        self.cost_, self.tree_ = found.cost, found.tree
        labels = np.full(len(stack.source), NO_GROUP, dtype=np.int32)
        labels[stack.kept] = placed[0]
        return labels

    def _sort(
        self, stack: Stack, appearance: Appearance, job: Job, saved: Mapping[str, Any]
    ) -> tuple[Sorted, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], dict[str, Any]]:
        """What was found in the sample; group, likeness, margin and ink of all; and what a checkpoint keeps of it."""
        count = self.n_groups
        if isinstance(count, int) and count > len(stack):
            raise CongealError(f"{stack.source.name} has {len(stack)} usable images, which cannot make {count} groups")
        given = None if self.table is None else read_given(self.table, [stack.source.id(i) for i in stack.kept])
        with torch.no_grad():
            found = self._sorted(stack, appearance, saved, given)
            self.names_ = list(given.names) if given else [str(k) for k in range(found.sorter.n_groups)]
            self._sorter, self.cost_, self.tree_ = found.sorter, found.cost, found.tree
            beside: dict[str, Any] = {"sorted": _sorted_state(found)}
            placed = self._placed(stack, appearance, found.sorter, found.rows, job, beside)
        beside["placed"] = (len(stack), [torch.as_tensor(column.copy()) for column in placed])
        group, likeness, margin, ink = placed
        self._median_ink = float(np.median(ink))
        labels = np.repeat(np.arange(found.sorter.n_groups), found.sorter.bounds.diff().numpy())
        # A witness's group is the one it was cut into, even where another is more alike: its margin says so.
        margin[found.rows] = np.where(group[found.rows] == labels, margin[found.rows], -margin[found.rows])
        group[likeness < found.sorter.limit] = NO_GROUP
        group[found.rows], group[found.outside] = labels, NO_GROUP
        group[self._empty(appearance, ink)] = NO_GROUP
        if given is not None:
            said = given.group != UNKNOWN
            margin[said & (given.group != group) & (margin > 0)] *= -1
            group[said] = given.group[said]
        return found, placed, beside

    def _empty(self, appearance: Appearance, ink: np.ndarray) -> np.ndarray:
        """(n,) bool: images that show nothing."""
        return blank(ink, self._median_ink) if appearance.holds_ink else np.zeros(len(ink), dtype=bool)

    def _sorted(self, stack: Stack, appearance: Appearance, saved: Mapping[str, Any], given: Given | None) -> Sorted:
        if "sorted" in saved:
            return _sorted_from(saved["sorted"])
        if given is not None:
            seed = self.random_state_
            how: dict[str, Any] = {"sample": self.fit_sample, "random_state": seed, "extractor": self._extractor()}
            return sort_given(stack, appearance, given.group, **how)
        return sort_sample(
            stack,
            appearance,
            self.n_groups,
            sample=self.fit_sample,
            most_groups=self.most_groups,
            random_state=self.random_state_,
            extractor=self._extractor(),
        )

    def _placed(
        self,
        stack: Stack,
        appearance: Appearance,
        sorter: Sorter,
        rows: np.ndarray,
        job: Job,
        beside: Mapping[str, Any],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Group, likeness to it, margin and ink of every image; rows: positions of the witnesses."""
        n = len(stack)
        own = np.full(n, -1)
        own[rows] = np.arange(len(rows))
        outputs = torch.zeros(n, dtype=torch.long), torch.zeros(n), torch.zeros(n), torch.zeros(n, dtype=torch.float64)
        extractor = self._extractor() if len(rows) < n else None

        def work(parts: Sequence[np.ndarray]) -> Iterable[tuple[torch.Tensor, ...]]:
            return placing(stack, appearance, sorter, own, parts, extractor)

        job.place(chunks(stack), work, *outputs, beside=beside)
        group, likeness, margin, ink = (output.numpy() for output in outputs)
        return group, likeness, margin, ink

    def _fitted_parts(
        self,
        stack: Stack,
        appearance: Appearance,
        group: np.ndarray,
        job: Job,
        saved: Mapping[str, Any],
        beside: Mapping[str, Any],
    ) -> list[Part]:
        """Every group aligned by itself; finished ones are kept in the checkpoint."""
        done: dict[int, Any] = dict(saved.get("done", {}))
        self._models: list[Method | None] = []
        parts: list[Part] = []
        for number in range(self._sorter.n_groups):
            rows, model = np.flatnonzero(group == number), self._inside(appearance.kind)
            if number in done:
                part = Part(**done[number]["part"])
                self._models.append(
                    self._restored(model, done[number]["model"], replace(stack.layout, kind=model.kind))
                )
            elif len(rows) < 2:
                part = Part.alone(rows, stack, MOTIONS[0], OK)
                self._models.append(None)
            else:
                part = fitted_part(model, rows, stack, job, Nested(job, number, {**beside, "done": done}, saved))
                self._models.append(model)
                done[number] = {"part": part.state(), "model": model._state()}
                job.step(number + 1, self._sorter.n_groups, images=len(rows), likeness=_likeness(part))
                if job.due():
                    job.save({**beside, "done": done})
            parts.append(part)
        return parts

    def _restored(self, model: Method, state: Mapping[str, torch.Tensor], layout: Layout) -> Method:
        model.layout_, model.random_state_ = layout, self.random_state_
        model._restore(state)
        return model

    def _whole(
        self,
        stack: Stack,
        appearance: Appearance,
        placed: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        parts: list[Part],
        decisions: Mapping[str, Mapping[str, Any]],
    ) -> GroupsFound:
        """The groups put together again. placed: group, likeness, margin and ink of every image."""
        group, likeness, margin, ink = placed
        rows = np.flatnonzero(group == NO_GROUP)
        outside = Part.alone(rows, stack, MOTIONS[0], OUTLIER)
        outside.numbers[0] = torch.as_tensor(likeness[rows]).double()
        outside.numbers[1] = torch.as_tensor(np.where(self._empty(appearance, ink[rows]), BLANK, OUTLIER)).double()
        poses = torch.empty(len(stack), 3, 3)
        for part in (*parts, outside):
            poses[part.rows] = part.poses
        return GroupsFound(
            poses,
            richest([part.about["motion"] for part in parts]),
            tuple(sorted({size for part in parts for size in part.about["levels"]})),
            any(part.about["trained"] for part in parts),
            None,
            decisions,
            group=group.astype(np.int32),
            margin=margin.astype(np.float64),
            likeness=likeness,
            parts=tuple(parts),
            outside=outside,
        )

    def _measured(
        self, stack: Stack, answer: torch.Tensor | Found, kind: str, *, verbose: bool, crew: Crew | None = None
    ) -> Alignment:
        assert isinstance(answer, GroupsFound)
        assert answer.outside is not None
        numbers = torch.empty(4, len(stack), dtype=torch.float64)
        for part in (*answer.parts, answer.outside):
            numbers[:, part.rows] = part.numbers
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
            group_names=self.names_ if _named(self.names_) else None,
        )
        quality = joint_quality(answer.parts, kind, len(stack), int((status == OK).sum()))
        # The parts are in the transforms now; a million poses twice would be 72 MB.
        return Alignment(transforms, quality, poses, replace(answer, parts=(), outside=None))

    # ---- new images

    def predict(self, images: Any, *, init: Any = None) -> np.ndarray:
        """(N,) the group of each image, −1 for none; nothing is aligned within its group, which takes longer."""
        self._check_fitted()
        stack = images if isinstance(images, Stack) else self._prepare(images, init, self.layout_)
        appearance = self._appearance(self.layout_.kind or stack.kind)
        nobody = np.zeros(0, dtype=np.int64)
        with torch.no_grad():
            placed = self._placed(stack, appearance, self._sorter, nobody, Job(self.name), {})
        group = self._new_groups(appearance, placed)
        labels = np.full(len(stack.source), NO_GROUP, dtype=np.int32)
        labels[stack.kept] = group
        return labels

    def _new_groups(self, appearance: Appearance, placed: tuple[np.ndarray, ...]) -> np.ndarray:
        """Groups of new images, −1 for those that are like none or show nothing."""
        group, likeness, _, ink = placed
        return np.where((likeness < self._sorter.limit) | self._empty(appearance, ink), NO_GROUP, group)

    def _align_new(self, stack: Stack, appearance: Appearance, job: Job) -> GroupsFound:
        saved = job.load() or {}
        with torch.no_grad():
            placed = self._placed(stack, appearance, self._sorter, np.zeros(0, dtype=np.int64), job, {})
        beside: dict[str, Any] = {"placed": (len(stack), [torch.as_tensor(column.copy()) for column in placed])}
        group = self._new_groups(appearance, placed)
        done: dict[int, Any] = dict(saved.get("done", {}))
        parts: list[Part] = []
        for number, model in enumerate(self._models):
            rows = np.flatnonzero(group == number)
            if number in done:
                parts.append(Part(**done[number]))
                continue
            if model is None or not len(rows):
                parts.append(Part.alone(rows, stack, MOTIONS[0], OK))
                continue
            few, nested = stack.some(rows), Nested(job, number, {**beside, "done": done}, saved)
            parts.append(Part.of(rows, few, model.align_new(few, checkpoint=nested, save_every=job.save_every)))
            done[number] = parts[-1].state()
            if job.due():
                job.save({**beside, "done": done})
        return self._whole(stack, appearance, (group, *placed[1:]), parts, {})

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        state = {f"sorter.{name}": tensor for name, tensor in self._sorter.state().items()}
        state["templates"] = self._templates
        state["numbers"] = torch.tensor([self._median_ink, self.cost_], dtype=torch.float64)
        state["sizes"] = torch.tensor(self.sizes_)
        state["tree"] = torch.tensor(self.tree_, dtype=torch.float64).reshape(-1, 3)
        if _named(self.names_):
            state["names"] = torch.frombuffer(bytearray("\n".join(self.names_).encode()), dtype=torch.uint8)
        for number, model in enumerate(self._models):
            if model is not None:
                state |= {f"group{number}.{name}": tensor for name, tensor in model._state().items()}
        return state

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        def under(prefix: str) -> dict[str, torch.Tensor]:
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

        self._sorter = Sorter.restore(under("sorter."))
        self._named_by_file = self.features not in (None, "lite0")
        self._templates, self.sizes_ = state["templates"], state["sizes"].tolist()
        self._median_ink, self.cost_ = state["numbers"].tolist()
        self.tree_ = [(int(one), int(other), share) for one, other, share in state["tree"].tolist()]
        self.names_ = [str(k) for k in range(self._sorter.n_groups)]
        if "names" in state:
            words = bytes(state["names"].tolist()).decode(errors="replace").split("\n")
            self.names_ = [check_name(word) for word in words]  # folders are called so
            if len(self.names_) != self._sorter.n_groups:
                raise CongealError(f"the model has {len(self.names_)} names for {self._sorter.n_groups} groups")
        layout = replace(self.layout_, kind=self.layout_.kind or "object")
        self._models = []
        for number in range(self._sorter.n_groups):
            own = under(f"group{number}.")
            model = self._inside(layout.kind or "object")
            self._models.append(self._restored(model, own, layout) if own else None)

    @property
    def templates_(self) -> np.ndarray:
        """(K, h, w) or (K, h, w, C): the mean of each group as the frame shows it, in [0, 1]."""
        self._check_fitted()
        pictures = self._templates.movedim(1, -1).numpy()
        return pictures[..., 0] if pictures.shape[-1] == 1 else pictures


def _named(names: Sequence[str]) -> bool:
    """Whether groups have names of their own and not just numbers."""
    return list(names) != [str(k) for k in range(len(names))]


def _about(number: int, name: str, part: Part, leak: float) -> dict[str, Any]:
    """What metrics.json says of a group."""
    quality = part.about["quality"] or {}
    names = (
        "likeness_before",
        "likeness_after",
        "apsnr_before",
        "apsnr_after",
        "energy_ratio",
        "mean_scale",
        "verdict",
    )
    numbers = {name: quality.get(name) for name in names}
    return {
        "group": number,
        "name": name,
        "n_images": len(part.rows),
        "motion": part.about["motion"],
        "leak": leak,
    } | numbers


def _likeness(part: Part) -> float:
    quality = part.about["quality"]
    return float("nan") if quality is None or quality["likeness_after"] is None else float(quality["likeness_after"])


def _sorted_state(found: Sorted) -> dict[str, Any]:
    """As plain tensors and numbers, for a checkpoint."""
    sorter = found.sorter.state()
    rows = {"rows": torch.as_tensor(found.rows), "outside": torch.as_tensor(found.outside)}
    plain = {"cost": found.cost, "leaks": found.leaks, "curve": found.curve, "tree": found.tree}
    return {"sorter": sorter, **rows, **plain}


def _sorted_from(state: Mapping[str, Any]) -> Sorted:
    return Sorted(
        Sorter.restore(state["sorter"]),
        state["rows"].numpy(),
        state["outside"].numpy(),
        state["cost"],
        list(state["leaks"]),
        [(int(count), float(leak)) for count, leak in state["curve"]],
        [(int(one), int(other), float(share)) for one, other, share in state["tree"]],
    )
