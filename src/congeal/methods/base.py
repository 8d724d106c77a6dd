"""The contract every method keeps: the scikit-learn API on image sets.

A method is a dataclass of hyper-parameters. `fit` finds one transform per image; what it learnt ends in `_` and does
not change afterwards. A subclass writes `_align` and, if it can align images it has not seen, `_state`, `_restore` and
`_align_new`.
"""

from __future__ import annotations

import copy
import json
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import numpy as np
import torch

from congeal.errors import CongealError, MissingExtra, did_you_mean, first_line
from congeal.evaluation import Quality
from congeal.evaluation.quality import describe_metrics, notebook_page
from congeal.execution import in_this_process
from congeal.files import write_bytes
from congeal.geometry import MOTIONS
from congeal.images import Image, Layout, Stack, open_writer, prepare, warp_image
from congeal.images.formats.writers import set_transforms, takes_parts
from congeal.images.intensity import Channel
from congeal.memmap import allocate, release_pages
from congeal.methods.checks import Range, Seed, accepts, describe, plain_number
from congeal.methods.fit_context import Callback, FitContext, FitResult, StateFile
from congeal.methods.measure import measure
from congeal.opening import open_images
from congeal.progress import log_to_console
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures, pixel_features
from congeal.registration.gauge import restricted
from congeal.transforms import Transforms

FORMAT = 3
"""Version of the model file's layout; files of another version are refused."""
KINDS = ("auto", "object", "photo")  # of sets


class NoTransform(CongealError, AttributeError):
    """A method that aligns a set as a whole has no `transform`; `hasattr` says so too."""


@dataclass(frozen=True)
class Alignment:
    """What was found for a set of images.

    Attributes
    ----------
    transforms : Transforms
        aligned_from_source of every image, with score and status.
    quality : Quality
        Numbers and verdict of the set.
    stack_from_frame : (n, 3, 3) array
        The same poses between the pictures the method worked on.
    found : FitResult
        What the method gave, with the motion it used and what it decided.
    """

    transforms: Transforms
    quality: Quality
    stack_from_frame: np.ndarray
    found: FitResult


@dataclass(kw_only=True, eq=False)
class Method:
    """What every method has in common: hyper-parameters, and the scikit-learn API.

    Parameters
    ----------
    motion : str
        translation, rigid, similarity, affine or homography.
    size : int
        Longer side, in pixels, of the picture the method works on; larger images are reduced to it.
    align_on : None, int, str or several of them
        Channels to align on: None for all, numbers from 0 or names (scientific stacks have them), or "grey".
    kind : str
        "object" (on empty ground), "photo", or "auto" to look at the images.
    guards : bool
        Keep the set from zooming or drifting as a whole; off shows the published behaviour.
    random_state : int or None
        Seed of everything random; None draws one, which the fitted model keeps as `random_state_`.

    Attributes
    ----------
    transforms_ : Transforms
        aligned_from_source of every image of the fit, in source pixels.
    quality_ : Quality
        Numbers and verdict of the fit.
    history_ : list of dict
        What was reported after every step.
    stack_from_frame_ : (n, 3, 3) array
        The poses between the pictures the method worked on.
    layout_ : Layout
        Sizes, channels, value ranges and kind of those pictures; new images are treated alike.
    random_state_ : int
        The seed of the fit.
    motion_ : str
        The motion that was used; not "auto".
    levels_ : tuple of int
        Longer sides, in pixels, of the frames that were worked at, coarse to fine.
    trained_ : bool
        Whether a network was trained.
    decisions_ : dict
        What was decided on the way, and why.
    """

    motion: str = "homography"
    size: Annotated[int, Range(least=2)] = 64
    align_on: Channel = None
    kind: str = "auto"
    guards: bool = True
    random_state: Seed | None = 0

    name: ClassVar[str]
    motions: ClassVar[tuple[str, ...]] = MOTIONS
    ordered: ClassVar[bool] = False  # the order of the images means something, so each is judged by those near it

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)

        def refuse(method: Method) -> None:
            raise NoTransform(f"{method.name} has no step for new images: fit it on all of them, or use another method")

        transform: Any = Method.__dict__["transform"] if cls.can_transform() else property(refuse)
        cls.transform = transform  # type: ignore[method-assign]

    # ---- parameters

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [f.name for f in fields(cls)]

    @classmethod
    @cache
    def _hints(cls) -> dict[str, Any]:
        """The types that the parameters are declared with."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hints[name] for name in cls._parameter_names()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change hyper-parameters; unknown names are an error that lists the known ones."""
        known = self._parameter_names()
        for name, value in params.items():
            if name not in known:
                hint = did_you_mean(name, known)
                raise CongealError(f"{self.name} has no parameter '{name}'{hint}: it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "layout_")

    def _repr_html_(self) -> str | None:
        """Notebook view of a fitted model: what it is, before and after, the numbers in words, the worst images."""
        if not self.__sklearn_is_fitted__():
            return None  # text will do
        usual = type(self)().get_params()
        shown = {k: "array" if isinstance(v, np.ndarray) else repr(v) for k, v in self.get_params().items()}
        given = ", ".join(f"{k}={text}" for k, text in shown.items() if text == "array" or text != repr(usual[k]))
        name, quality = f"{type(self).__name__}({given})", getattr(self, "quality_", None)
        if quality is None:  # from a file
            height, width = self.layout_.frame
            said = f"Fitted, for pictures of {width}×{height} pixels: transform aligns new images."
            return notebook_page(name, [said], None)
        decided = [str(facts["sentence"]) for facts in self.decisions_.values() if facts.get("sentence")]
        said = f"{quality.verdict.capitalize()}. {quality.advice}"
        title = f"{name}, fitted: {self.motion_} motion"
        return notebook_page(title, [said, *describe_metrics(quality), *decided], quality.preview)

    # ---- fitting

    def fit(
        self,
        images: Any,
        y: None = None,
        *,
        init: np.ndarray | Transforms | None = None,
        checkpoint: StateFile | None = None,
        save_every: float = 20.0,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> Self:
        """Align a set: anything `open_images` takes, or a prepared Stack.

        init: aligned_from_source matrices (N, 3, 3) to start from. checkpoint: where the state is kept, every
        `save_every` seconds, so that the same call continues an interrupted one. callbacks: called with an Event after
        every step. verbose: show progress, as a bar on a terminal and as lines elsewhere.
        """
        self.check_parameters()
        stack = images if isinstance(images, Stack) else self._prepare(images, init, verbose=verbose)
        if len(stack) < 2:
            raise CongealError(f"{stack.source.name} has {len(stack)} usable image: aligning a set needs at least two")
        kind = stack.kind if self.kind == "auto" else self.kind
        context = FitContext(self.name, callbacks, checkpoint, not verbose, save_every)
        context.random_state = context.choose_seed(self.random_state)
        worker = self._worker(context.random_state)
        # Whatever the caller is in the middle of: nothing made in inference mode could be kept and learnt with.
        with log_to_console(verbose), closing(context), torch.inference_mode(False), torch.enable_grad():
            found = worker._align(stack, worker._features(kind), context)
        self.__dict__ |= {name: value for name, value in worker.__dict__.items() if name not in self.get_params()}
        self.history_, self.random_state_ = context.history, context.random_state
        self.layout_ = replace(stack.layout, kind=kind)
        result = self._measured(stack, found, kind, verbose=verbose)
        self.transforms_, self.quality_ = result.transforms, result.quality
        self.stack_from_frame_ = result.stack_from_frame
        self.motion_, self.levels_, self.trained_ = result.found.motion, result.found.levels, result.found.trained
        self.decisions_ = dict(result.found.decisions)
        return self

    def transform(
        self, images: Any, *, init: np.ndarray | Transforms | None = None, output: Any = None, verbose: bool = False
    ) -> Any:
        """Align images the fit has not seen, with no change to the model. Gives what `fit_transform` gives.

        An image's result does not depend on the others it comes with; several threads may ask at once.
        verbose: as for `fit`.
        """
        self._check_fitted()
        self.check_parameters()
        stack = images if isinstance(images, Stack) else self._prepare(images, init, self.layout_, verbose=verbose)
        return _output(stack, self.align_new(stack, verbose=verbose).transforms, images, output)

    def align_new(
        self, stack: Stack, *, checkpoint: StateFile | None = None, save_every: float = 20.0, verbose: bool = False
    ) -> Alignment:
        """`transform` without the pixels: what is found for a stack that was prepared with this model's `layout_`.

        checkpoint, save_every, verbose: as for `fit`, so that a long pass can be interrupted.
        """
        self._check_fitted()
        self.check_parameters()
        kind = self.layout_.kind or stack.kind
        context = FitContext(self.name, (), checkpoint, not verbose, save_every)
        worker = self._worker(self.random_state_)
        with log_to_console(verbose), closing(context), torch.inference_mode(False):
            found = worker._align_new(stack, worker._features(kind), context)
        return self._measured(stack, found, kind, verbose=verbose)

    def fit_transform(self, images: Any, y: None = None, *, output: Any = None, **options: Any) -> Any:
        """Fit, and give the aligned images: an array for an array, of the same dtype; a list of arrays for anything
        else, or with `output` a folder of files (its path is returned). options: those of `fit`."""
        self.check_parameters()
        init, verbose = options.pop("init", None), options.get("verbose", False)
        stack = images if isinstance(images, Stack) else self._prepare(images, init, verbose=verbose)
        self.fit(stack, **options)
        return _output(stack, self.transforms_, images, output)

    @classmethod
    def can_transform(cls) -> bool:
        """Whether this method can align new images."""
        return cls._align_new is not Method._align_new

    @classmethod
    def check_value(cls, name: str, value: Any) -> None:
        """Raise `CongealError` for a value that the parameter of this name cannot have."""
        hint = cls._hints()[name]
        if not accepts(hint, value):
            raise CongealError(f"{cls.name}: {name} must be {describe(hint)}, not {reprlib.repr(value)}")

    def check_parameters(self) -> None:
        """Raise `CongealError` for hyper-parameters that cannot work; `fit` asks first of all."""
        for name, value in self.get_params().items():
            self.check_value(name, value)
        if self.motion not in self.motions:
            hint, known = did_you_mean(self.motion, self.motions), ", ".join(self.motions)
            raise CongealError(f"{self.name} has no motion '{self.motion}'{hint}: choose one of {known}")
        if self.kind not in KINDS:
            raise CongealError(f"unknown kind '{self.kind}': choose one of {', '.join(KINDS)}")
        self._check_parameters()

    def _worker(self, random_state: int) -> Self:
        """A copy with parameters in Python's own numbers and a seed, which does the work. What it learns becomes this
        method's in the end; placing new images leaves no trace at all."""
        worker = copy.copy(self)
        worker.__dict__ |= {name: plain_number(value) for name, value in self.get_params().items()}
        worker.random_state = worker.random_state_ = random_state
        return worker

    def _check_fitted(self) -> None:
        if not hasattr(self, "layout_"):
            raise CongealError(f"this {type(self).__name__} is not fitted yet: call fit first, or congeal.load a model")

    def _prepare(self, images: Any, init: Any, layout: Layout | None = None, *, verbose: bool = False) -> Stack:
        options: dict[str, Any] = {"size": self.size, "align_on": self.align_on, "layout": layout, "quiet": not verbose}
        return prepare(open_images(images), init=init, **options)

    def _measured(self, stack: Stack, answer: torch.Tensor | FitResult, kind: str, *, verbose: bool) -> Alignment:
        if isinstance(answer, torch.Tensor):
            answer = FitResult(answer, self.motion, (max(stack.frame),))
        # As precise as the method is: a million poses in float64 are 72 MB.
        poses = allocate(tuple(answer.poses.shape), np.float32)
        for rows in chunks(stack):
            start = torch.as_tensor(stack.start[rows])
            poses[rows] = restricted(answer.poses[rows].cpu(), start, answer.motion, stack.frame).numpy()
            release_pages()
        # A feature network stays in this process.
        with torch.inference_mode(False), nullcontext() if answer.sight is None else in_this_process():
            unknown = None if answer.unknown is None else answer.unknown.numpy()
            how: dict[str, Any] = {"motion": answer.motion, "ordered": self.ordered, "sight": answer.sight}
            result = measure(stack, poses, kind, **how, unknown=unknown, quiet=not verbose)
        error = None if answer.error is None else answer.error.double().cpu().numpy() * stack.source_pixels()
        transforms = stack.to_transforms(poses, result.score, result.status, result.out_of_frame, error)
        return Alignment(transforms, result.quality, poses, answer)

    # ---- what a subclass writes

    def _check_parameters(self) -> None:
        """Raise `CongealError` for the subclass's own hyper-parameters."""

    def _features(self, kind: str) -> ImageFeatures:
        """What the method compares of a kind of set, "object" or "photo"."""
        return pixel_features(kind)

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor | FitResult:
        """Find stack_from_frame (n, 3, 3), starting at stack.start; `FitResult` says more than the poses."""
        raise NotImplementedError

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor | FitResult:
        """Find stack_from_frame (n, 3, 3) of unseen images from what was learnt, each image alone; changes nothing."""
        raise NotImplementedError

    def _state(self) -> dict[str, torch.Tensor]:
        """What was learnt, as tensors by name."""
        raise CongealError(f"{self.name} learns nothing that could be saved for new images")

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """The inverse of `_state`, after the hyper-parameters and the layout are in place."""
        raise NotImplementedError

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model: weights in safetensors, everything else as JSON in its header."""
        from safetensors.torch import save

        self._check_fitted()
        layout = self.layout_.as_dict()
        about = {"format": FORMAT, "method": self.name, "params": self._plain_params(), "layout": layout}
        about["random_state"] = self.random_state_
        tensors = {name: tensor.contiguous() for name, tensor in self._state().items()}
        write_bytes(path, save(tensors, {"congeal": json.dumps(about)}))

    def _plain_params(self) -> dict[str, Any]:
        """Hyper-parameters as JSON can hold them; an array given as reference lives on in the learnt state."""
        plain = str | int | float | bool | list | tuple | dict | None
        params = {k: plain_number(v) for k, v in self.get_params().items()}
        return {k: v if isinstance(v, plain) else None for k, v in params.items()}


def load(path: str | os.PathLike[str]) -> Method:
    """Read a model file written by `save`. Nothing in it is executed, so it is safe to load from strangers."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not os.path.exists(path):
        raise CongealError(f"no model file '{path}'")
    try:
        if not path.is_file():
            raise OSError("not a file")
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["congeal"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, ValueError, TypeError, OSError, RecursionError) as error:
        raise CongealError(f"'{path}' is not a model file of congeal") from error
    try:
        return _restored(path, about, state)
    except CongealError:
        raise
    except Exception as error:  # what is not as `save` wrote it raises nearly anything
        raise CongealError(f"'{path}' is damaged ({type(error).__name__}: {first_line(error)}): align again") from error


def _restored(path: Path, about: dict[str, Any], state: dict[str, torch.Tensor]) -> Method:
    """The model that a file's header and tensors say."""
    if about.get("format") != FORMAT:
        raise CongealError(f"'{path}' has model format {about.get('format')}, this version reads {FORMAT}: align again")
    from congeal.methods.registry import method_class

    cls = method_class(about["method"])
    known = cls._parameter_names()
    params = {k: tuple(v) if isinstance(v, list) else v for k, v in about["params"].items() if k in known}
    model = cls().set_params(**params)
    try:
        model.check_parameters()
    except MissingExtra:
        raise
    except CongealError as error:
        raise CongealError(f"'{path}' is damaged: {error}") from error
    if any(bool(tensor.isnan().any()) for tensor in state.values()):
        raise ValueError("it holds NaN")
    model.layout_ = Layout(**about["layout"])
    seed = about.get("random_state", model.random_state)
    if seed is None or not accepts(Seed, seed):
        raise ValueError(f"its seed is {seed!r}")
    model.random_state_ = int(seed)
    model._restore(state)
    return model


def _output(stack: Stack, transforms: Transforms, images: Any, output: Any) -> Any:
    """Aligned images at full resolution: a folder, an array or a list, after what came in."""
    source, size = stack.source.original, stack.aligned_size
    poses = dict(zip(stack.kept.tolist(), np.linalg.inv(transforms.matrices[stack.kept]), strict=True))
    aligned = ((i, warp_image(source.read(i), matrix, size)) for i, matrix in poses.items())
    if output is not None:
        with open_writer(output, source, size) as writer:
            set_transforms(writer, source, transforms.matrices)
            for i, image in _aligned_parts(stack, poses) if takes_parts(writer, source) else aligned:
                writer.write(i, image.pixels, image.mask)
        return Path(output)
    if source.parts is not None:
        pixels = [image.pixels for _, image in _aligned_parts(stack, poses)]
        return [np.stack(pixels[k : k + source.n_parts]) for k in range(0, len(pixels), source.n_parts)]
    if isinstance(images, np.ndarray | torch.Tensor):
        return _as_given(images, stack, aligned)
    return _as_dask(stack, poses) if hasattr(images, "dask") else [image.pixels for _, image in aligned]


def _as_dask(stack: Stack, poses: Mapping[int, np.ndarray]) -> Any:
    """A dask array that reads and moves an image when it is asked for; images that were skipped are zero."""
    import dask.array
    from dask.delayed import delayed

    header = stack.source.probe(int(stack.kept[0]))
    shape = (*stack.aligned_size, *(() if stack.source.grey else (header.channels,)))

    def one(i: int) -> np.ndarray:
        if i not in poses:
            return np.zeros(shape, header.dtype)
        return warp_image(stack.source.read(i), poses[i], stack.aligned_size).pixels.reshape(shape)

    images = [dask.array.from_delayed(delayed(one)(i), shape, header.dtype) for i in range(len(stack.source))]
    return dask.array.stack(images)


def _aligned_parts(stack: Stack, poses: Mapping[int, np.ndarray]) -> Iterator[tuple[int, Image]]:
    """Every plane of the images of a stack with depth, moved as its image is, with its position."""
    for i, matrix in poses.items():
        for part in stack.source.part_rows([i]):
            if stack.source.parts is not None:
                yield int(part), warp_image(stack.source.parts.read(int(part)), matrix, stack.aligned_size)


def _as_given(images: np.ndarray | torch.Tensor, stack: Stack, aligned: Iterable[tuple[int, Image]]) -> Any:
    """Same kind, dtype and axes as the array that came in; rows that were skipped are zero."""
    first = stack.source.original.read(int(stack.kept[0])).pixels
    out = np.zeros((len(stack.source), *stack.aligned_size, first.shape[2]), first.dtype)
    for i, image in aligned:
        out[i] = image.pixels
    if isinstance(images, torch.Tensor):
        tensor = torch.from_numpy(out).to(images.dtype)
        return tensor[..., 0] if images.ndim == 3 else tensor.movedim(-1, 1)
    out = out.astype(images.dtype, copy=False)
    return out[..., 0] if images.ndim == 3 else out
