"""Commands that align images: align, apply and demo."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from congeal.cli.flags import Channel, Count, Depth, Device, File, Flag, On, Run, Settings, Source, Start, output
from congeal.cli.outcome import exit_code, print_result
from congeal.cli.settings import parse_settings


@dataclasses.dataclass
class Align:
    """Align a set of images and write a run folder: transforms, aligned images, numbers, report, model.

    Run the same command again to resume a run that was stopped.
    """

    source: Source
    """A folder, a glob, a list file, .npy/.npz, idx(.gz), a TIFF stack, tar shards, Parquet, a URL, or a named set
    such as digits:3 or mnist:3."""
    output: Annotated[str, output("RUN")]
    """The run folder to write, or to resume."""
    method: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """How to align; 'congeal methods' lists them. deep unless given."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """paper-mnist or paper-lfw: the paper's own method with the parameters it prints."""
    motion: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """auto, the default of deep: the simplest that suffices; or translation, rigid, similarity, affine or homography.
    The method's own unless given."""
    train: Annotated[str | None, tyro.conf.arg(metavar="auto|always|never", help_behavior_hint="")] = None
    """Whether deep trains a network: when that helps (auto), always or never; auto unless given."""
    groups: Annotated[str | None, tyro.conf.arg(metavar="K|auto|FILE", help_behavior_hint="")] = None
    """How many kinds of things the pile holds, or auto to find out: it is sorted into groups and each is aligned by
    itself. A CSV file with the columns id and group says which image is in which. Unless given the images are of one
    kind."""
    sequence: Flag = False
    """The order of the images means something: each is followed from the one before it, however far they drift, and all
    are adjusted together."""
    smooth: Annotated[float | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Of a sequence take out only what shakes faster than within N images; slower motion stays."""
    reference: Annotated[str, tyro.conf.arg(metavar="auto|first|previous|mean|stack|medoid|PATH|INDEX")] = "auto"
    """What to align to: the method's own choice (auto), its most typical image (medoid), an image file, or the index of
    an image of the set; lsc also takes the mean of the set and all its images (stack). With --sequence: the first, the
    mean, an index or a file; previous follows each image from the one before it, as pystackreg does."""
    channel: Channel = None
    """What to align on: a channel's name or its number from 0, several with commas; all channels move. All are looked
    at unless given."""
    z: Depth = None
    """What a stack with depth is: one image per time point, aligned on its maximum (project) or mean along Z, or one
    per plane (planes); auto projects where there are several time points."""
    init: Start = None
    """Where to start: 'faces' for the face in each photograph ('faces@0.3': box 30% larger), a transforms file, or
    boxes (columns id,x,y,width,height in source pixels)."""
    start: Annotated[str | None, tyro.conf.arg(metavar="features|none|faces|FILE", help_behavior_hint="")] = None
    """The same as --init, and 'features': where features of a network bring the images together."""
    features: Annotated[
        str | None, tyro.conf.arg(metavar="edges|pixels|lite0|MODULE.pt|MODEL.onnx|timm:NAME", help_behavior_hint="")
    ] = None
    """What is compared. edges or pixels; or features of a network, for things of one kind in the wild: lite0 (needs the
    extra 'semantic'), a TorchScript file, an ONNX file, or a network of timm. With --groups, what a pile is sorted
    by."""
    mirror: Flag = False
    """Every image may be a mirror image; the images themselves tell which are."""
    turns: Flag = False
    """Every image may be turned by 90, 180 or 270 degrees."""
    size: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Longer side, in pixels, of the images the method works on; 64 unless given. deep begins there and goes on to
    finer ones, as fine as the images are; --set finest=N caps them. Results keep the full resolution."""
    limit: Count = None
    """Use only the first N images."""
    exclude: File = None
    """Images to leave out: a table with the column id, such as RUN/studio/excluded.csv, or one id per line."""
    seed: Count = None
    """Seed of everything random, which is the method's parameter random_state; 0 unless given."""
    device: Device = None
    """Where deep trains its network; auto, which is a GPU if there is one, unless given. The rest is the CPU's."""
    no_aligned: Flag = False
    """Do not write the aligned images, only transforms and pictures of the whole."""
    output_format: str = "auto"
    """auto gives back what came in; or files, npy, tiff, zarr, fits, shards, mp4 or gif."""
    interpolation: Annotated[
        str | None, tyro.conf.arg(metavar="nearest|bilinear|bicubic|lanczos", help_behavior_hint="")
    ] = None
    """How pixels are looked up between pixels; bicubic unless given. Masks are never blended."""
    canvas: Annotated[str, tyro.conf.arg(metavar="input|common|union|WxH")] = "input"
    """The frame of the results: as the input, cropped to what every image covers, grown to hold all of every image, or
    so many pixels around the middle. Images that cannot be trusted do not count."""
    fill: Annotated[str | None, tyro.conf.arg(metavar="NUMBER|nan|edge", help_behavior_hint="")] = None
    """What lies outside an image, on the scale of its pixels; 0 unless given. edge goes on with the outermost pixels.
    Where images have alpha, it is transparent as well."""
    transforms_format: str = "auto"
    """csv, npz or parquet; auto is csv for up to 200,000 images and npz for more."""
    set: Settings = dataclasses.field(default_factory=list)
    """A parameter of the method, for example --set damping=0.1; may be repeated."""
    on: On = None
    """Who shares the work: processes of this machine, or Dask on this machine or a cluster. The answer is the same."""
    strict: Flag = False
    """Exit with code 3 if the verdict is not good or unchanged."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> int:
        """Align and print the outcome; gives the exit code."""
        from congeal.distributed.engine import starting

        with starting(self.on) as executor:
            from congeal.pipeline.align import align

            result = align(
                self.source,
                self.output,
                method=self.method,
                preset=self.preset,
                motion=self.motion,
                train=self.train,
                groups=self.groups,
                sequence=self.sequence,
                smooth=self.smooth,
                params=parse_settings(self.set),
                reference=self.reference,
                channel=self.channel,
                z=self.z,
                init=self.init,
                start=self.start,
                features=self.features,
                mirror=self.mirror,
                turns=self.turns,
                size=self.size,
                limit=self.limit,
                exclude=self.exclude,
                seed=self.seed,
                device=self.device,
                write_aligned=not self.no_aligned,
                output_format=self.output_format,
                interpolation=self.interpolation,
                canvas=self.canvas,
                fill=self.fill,
                transforms_format=self.transforms_format,
                executor=executor,
                quiet=self.quiet,
                command=command,
            )
        print_result(result, self.quiet)
        return exit_code(result, self.strict)


@dataclasses.dataclass
class Apply:
    """Align new images with the model of a finished run, without touching the old ones."""

    run_folder: Run
    """The run folder of an earlier 'congeal align'."""
    source: Source
    """The new images; anything 'congeal align' takes."""
    output: Annotated[str, output("DIR")]
    """The folder to write, or to resume."""
    channel: Channel = None
    """What to align on, as for 'congeal align'; what the run was aligned on unless given."""
    z: Depth = None
    """What a stack with depth is, as for 'congeal align'; as in the run unless given."""
    init: Start = None
    """Where to start, as for 'congeal align'; a run that began at faces looks for faces in new images as well."""
    limit: Count = None
    """Use only the first N images."""
    device: Device = None
    """auto or cpu: new images are aligned on the CPU."""
    no_aligned: Flag = False
    """Do not write the aligned images."""
    output_format: str = "auto"
    """auto gives back what came in; or files, npy, tiff, zarr, fits, shards, mp4 or gif."""
    interpolation: Annotated[
        str | None, tyro.conf.arg(metavar="nearest|bilinear|bicubic|lanczos", help_behavior_hint="")
    ] = None
    """How pixels are looked up between pixels; bicubic unless given. Masks are never blended."""
    fill: Annotated[str | None, tyro.conf.arg(metavar="NUMBER|nan|edge", help_behavior_hint="")] = None
    """What lies outside an image, on the scale of its pixels; 0 unless given. edge goes on with the outermost pixels.
    Where images have alpha, it is transparent as well."""
    transforms_format: str = "auto"
    """csv, npz or parquet; auto is csv for up to 200,000 images and npz for more."""
    on: On = None
    """Who shares the work: processes of this machine, or Dask on this machine or a cluster. The answer is the same."""
    strict: Flag = False
    """Exit with code 3 if the verdict is not good or unchanged."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> int:
        """Align the new images and print the outcome; gives the exit code."""
        from congeal.distributed.engine import starting

        with starting(self.on) as executor:
            from congeal.pipeline.apply import apply

            result = apply(
                self.run_folder,
                self.source,
                self.output,
                channel=self.channel,
                z=self.z,
                init=self.init,
                limit=self.limit,
                device=self.device,
                write_aligned=not self.no_aligned,
                output_format=self.output_format,
                interpolation=self.interpolation,
                fill=self.fill,
                transforms_format=self.transforms_format,
                executor=executor,
                quiet=self.quiet,
                command=command,
            )
        print_result(result, self.quiet)
        return exit_code(result, self.strict)


@dataclasses.dataclass
class Demo:
    """Align the bundled handwritten threes and show the report; under two minutes."""

    output: Annotated[str, output("RUN")] = "congeal-demo"
    """The run folder to write, or to resume."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Align the bundled digits and print the outcome."""
        from congeal.pipeline.align import align

        result = align("digits:3", self.output, size=28, quiet=self.quiet, command=command)
        print_result(result, self.quiet)
