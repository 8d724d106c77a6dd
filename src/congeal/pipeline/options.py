"""The options of `congeal.align` and `congeal.apply`, each spelt once.

The functions take the fields of these dataclasses as keyword arguments; the command line builds the same dataclasses
from its flags with tyro, and prints the string below each field as its help text. Nothing heavy is imported here, so
that `congeal --help` answers at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Annotated, Any, TypeVar

import tyro

from congeal.errors import did_you_mean
from congeal.methods.registry import DEEP_IS_GONE

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
File = Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Init = Annotated[str | None, tyro.conf.arg(metavar="faces|FILE.csv", help_behavior_hint="")]
Device = Annotated[str | None, tyro.conf.arg(metavar="auto|cpu|cuda|mps", help_behavior_hint="")]
ChannelName = Annotated[str | None, tyro.conf.arg(metavar="NAME|INDEX", help_behavior_hint="")]
Depth = Annotated[str | None, tyro.conf.arg(metavar="auto|project|mean|planes", help_behavior_hint="")]
Kernel = Annotated[str | None, tyro.conf.arg(metavar="nearest|bilinear|bicubic|lanczos", help_behavior_hint="")]
Settings = Annotated[
    tyro.conf.UseAppendAction[list[str]], tyro.conf.arg(name="set", metavar="KEY=VALUE", help_behavior_hint="")
]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How results are written."""

    write_aligned: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="aligned", help_behavior_hint="")
    ] = True
    """Do not write the aligned images, only transforms and pictures of the whole set."""
    output_format: str = "auto"
    """auto writes the format of the input; or files, npy, tiff, zarr, fits, shards, mp4 or gif."""
    interpolation: Kernel = None
    """Interpolation between pixels; bicubic unless given. Masks are never blended."""
    fill: Annotated[str | None, tyro.conf.arg(metavar="NUMBER|nan|edge", help_behavior_hint="")] = None
    """The value outside an image, on the scale of its pixels; 0 unless given. edge repeats the outermost pixels. Where
    images have alpha, the outside is transparent as well."""
    transforms_format: str = "auto"
    """csv, npz or parquet; auto is csv for up to 200,000 images and npz for more."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How the images are read, and where they start. New images are read as those of their run, and start as these."""

    channel: ChannelName = None
    """The channel to align on: its name or its number from 0, several with commas; all channels move together. All are
    used unless given; of new images, those of their run."""
    z: Depth = None
    """How a stack with depth is read: one image per time point, aligned on its maximum (project) or mean along Z, or
    one image per plane (planes); auto projects if there are several time points."""
    init: Init = None
    """Initial poses: 'faces' for the face in each photograph ('faces@0.3': box 30% larger), a transforms file, or boxes
    (columns id,x,y,width,height in source pixels)."""
    limit: Count = None
    """Use only the first N images."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(SourceOptions):
    """Which images are aligned, and how."""

    method: Name = None
    """How to align; 'congeal methods' lists them. joint unless given."""
    preset: Name = None
    """paper-mnist or paper-lfw: the paper's own method with the parameters it prints."""
    motion: Name = None
    """auto, the default of joint: the simplest that suffices; or translation, rigid, similarity, affine or homography.
    The method's own unless given."""
    groups: Annotated[str | None, tyro.conf.arg(metavar="K|auto|FILE", help_behavior_hint="")] = None
    """The number of groups to sort the images into, or auto to estimate it; each group is aligned by itself. A CSV file
    with the columns id and group assigns every image to a group. Unless given the images are of one kind."""
    sequence: Flag = False
    """The images are in order: each is registered to the one before it, however far they drift, and all are adjusted
    together."""
    smooth: Annotated[float | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """With --sequence: remove only motion faster than N images; slower motion stays."""
    reference: Annotated[str, tyro.conf.arg(metavar="auto|first|previous|mean|stack|medoid|PATH|INDEX")] = "auto"
    """What to align to: the method's own choice (auto), the most typical image (medoid), an image file, or the index of
    an image of the set; lsc also takes the mean of the set and all its images (stack). With --sequence: the first, the
    mean, an index or a file; previous registers each image to the one before it, as pystackreg does."""
    start: Annotated[str | None, tyro.conf.arg(metavar="features|none|faces|FILE", help_behavior_hint="")] = None
    """The same as --init, and 'features': poses found by features of a network; 'none': identity, even if the source
    has initial poses, as faces of lfw: have."""
    features: Annotated[
        str | None, tyro.conf.arg(metavar="edges|pixels|lite0|MODULE.pt|MODEL.onnx|timm:NAME", help_behavior_hint="")
    ] = None
    """What is compared: edges or pixels; or features of a network, for objects of one kind in photographs: lite0 (needs
    the extra 'semantic'), a TorchScript file, an ONNX file, or a network of timm. With --groups, the features that
    images are sorted by."""
    mirror: Flag = False
    """Every image may be mirrored; the orientation is estimated."""
    turns: Flag = False
    """Every image may be turned by 90, 180 or 270 degrees; the orientation is estimated."""
    size: Count = None
    """Longer side, in pixels, of the images the method works on; 64 unless given. joint begins there and goes on to
    larger ones, up to the size of the originals; --set finest=N limits them. Results keep the full resolution."""
    exclude: File = None
    """Images to leave out: a table with the column id, such as RUN/studio/excluded.csv, or one id per line."""
    seed: Count = None
    """Seed of the random number generator, the method's parameter random_state; 0 unless given."""
    device: Device = None
    """Where dprc trains its network; auto, which is a GPU if there is one, unless given. Everything else runs on the
    CPU."""
    params: Settings = field(default_factory=list)
    """A parameter of the method, for example --set damping=0.1; may be repeated."""


@dataclass(frozen=True, kw_only=True)
class AlignOptions(OutputOptions, FitOptions):
    """The options of `congeal.align`, which are those of `congeal align`.

    Python also takes numbers where the command line has text: `groups=3`, `reference=0`, `channel=[0, 1]`, `fill=0.5`.
    `params` is a mapping, `exclude` may be a list of ids, and `write_aligned=False` is `--no-aligned`.
    """

    canvas: Annotated[str, tyro.conf.arg(metavar="input|common|union|WxH")] = "input"
    """The frame of the results: that of the input, cropped to the pixels that every image covers (common), extended to
    hold every image (union), or W x H pixels around the centre. Images whose status is not ok are ignored."""


@dataclass(frozen=True, kw_only=True)
class ApplyOptions(OutputOptions, SourceOptions):
    """The options of `congeal.apply`, which are those of `congeal apply`."""

    device: Device = None
    """auto or cpu: new images are aligned on the CPU."""


Answer = TypeVar("Answer")


def with_options(kind: type[Any]) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Let a function with the argument `options` take their fields as keyword arguments in its place.

    A name that does not exist is a TypeError, as for any function.
    """
    known = [one.name for one in fields(kind)]

    def decorate(function: Callable[..., Answer]) -> Callable[..., Answer]:
        own = inspect.signature(function).parameters.values()

        @wraps(function)
        def call(*arguments: Any, options: Any = None, **given: Any) -> Answer:
            ours = {one.name: given.pop(one.name) for one in own if one.name in given}
            for name in given:
                if name == "train":
                    raise TypeError(f"there is no option train any more: {DEEP_IS_GONE}")
                if name not in known or options is not None:
                    raise TypeError(f"unexpected keyword argument {name!r}{did_you_mean(name, known)}")
            return function(*arguments, options=kind(**given) if options is None else options, **ours)

        shown = [one for one in own if one.name != "options"] + list(inspect.signature(kind).parameters.values())
        call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return call

    return decorate
