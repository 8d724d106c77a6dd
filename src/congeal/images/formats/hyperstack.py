"""Metadata of a scientific stack: axes, size of a pixel, time step, names of channels; and its OME-XML.

Axes are letters, slowest first, as tifffile writes them: T time, Z depth, C channel, Y, X, S colour sample; any other
letter, such as I (pages) or R (positions), numbers images as T does. An image of the set is one position along the
*image axes*; its channels are all positions along C and S.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from congeal.errors import CongealError, first_line

PLANE = "YX"
CHANNEL = "CS"
Z_MODES = ("auto", "project", "mean", "planes")
"""What a stack with depth is: one image per time point, aligned on its maximum or mean, or one image per plane."""


class Step(NamedTuple):
    """How far apart two neighbours along an axis are; the unit may be unknown."""

    size: float
    unit: str = ""


@dataclass(frozen=True)
class Hyperstack:
    """Axes and shape of a stack as it is in its file, and its metadata.

    steps: pixel size (X, Y), distance of planes (Z) and time step (T), by letter. channel_names: one for each position
    along C and S together, or empty. chosen: the positions that were kept, for each image axis that lost some. ragged:
    the images are no grid any more but one sequence, so that their positions are unknown. origin: metadata that only a
    writer of the same format understands, such as `TiffOrigin`.
    """

    axes: str
    shape: tuple[int, ...]
    steps: Mapping[str, Step] = field(default_factory=dict)
    channel_names: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ragged: bool = False
    origin: Any = None

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape) or len(set(self.axes)) != len(self.axes):
            raise CongealError(f"axes {self.axes!r} do not fit an array of shape {self.shape}")
        if not set(PLANE) <= set(self.axes):
            raise CongealError(f"a stack of images needs axes Y and X, and has {self.axes or 'none'}")

    def length(self, letter: str) -> int:
        """How many positions an axis has; 1 for one there is not."""
        return self.shape[self.axes.index(letter)] if letter in self.axes else 1

    @property
    def image_axes(self) -> str:
        """The axes along which images follow each other, slowest first; planes of one time point are neighbours."""
        others = [letter for letter in self.axes if letter not in PLANE + CHANNEL + "Z"]
        return "".join(others) + ("Z" if "Z" in self.axes else "")

    @property
    def channel_axes(self) -> str:
        """C, S, both, or none."""
        return "".join(letter for letter in CHANNEL if letter in self.axes)

    @property
    def n_images(self) -> int:
        """How many images there are, plane by plane."""
        return math.prod(map(self.length, self.image_axes))

    @property
    def n_channels(self) -> int:
        """How many channels an image has."""
        return math.prod(map(self.length, self.channel_axes))

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of an image."""
        return self.length("Y"), self.length("X")

    def place(self, i: int) -> dict[str, int]:
        """Where image i lies along the image axes, by letter."""
        index = np.unravel_index(range(self.n_images)[i], tuple(map(self.length, self.image_axes)))
        return dict(zip(self.image_axes, map(int, index), strict=True))

    def index(self, at: Mapping[str, int], letters: str) -> int:
        """Which image (letters: `image_axes`) or which of its channels (`channel_axes`) lies there."""
        number = 0
        for letter in letters:
            number = number * self.length(letter) + at.get(letter, 0)
        return number

    def plane(self, images: np.ndarray, at: Mapping[str, int]) -> np.ndarray:
        """The plane (H, W) that lies there, of images (N, H, W) or (N, H, W, C) of this stack."""
        image = images[self.index(at, self.image_axes)]
        return np.asarray(image if image.ndim == 2 else image[..., self.index(at, self.channel_axes)])

    def places(self, letters: str) -> Iterator[dict[str, int]]:
        """Every position along these axes, the last one fastest."""
        for index in np.ndindex(*map(self.length, letters)):
            yield dict(zip(letters, map(int, index), strict=True))

    def ids(self, letters: str | None = None) -> list[str]:
        """Names of the images, or of the positions along these axes: numbered pages, or letters with numbers."""
        letters = self.image_axes if letters is None else letters
        if len(letters) < 2:
            return [f"page-{i:05d}" for i in range(math.prod(map(self.length, letters)))]
        return ["-".join(f"{key.lower()}{n:05d}" for key, n in at.items()) for at in self.places(letters)]

    def as_pixels(self, block: np.ndarray, axes: str) -> np.ndarray:
        """A block with Y, X and channel axes in any order → (H, W, C)."""
        order = [axes.index(letter) for letter in PLANE + self.channel_axes]
        return block.transpose(order).reshape(*self.size, self.n_channels)

    def resized(self, size: tuple[int, int]) -> Hyperstack:
        """The same stack with pictures of another (height, width)."""
        lengths = {"Y": size[0], "X": size[1]}
        return replace(self, shape=tuple(lengths.get(a, n) for a, n in zip(self.axes, self.shape, strict=True)))

    def taken(self, rows: np.ndarray) -> Hyperstack:
        """The stack of some of its images.

        Whole positions of the slowest image axis leave a shorter axis; anything else is one sequence along it. The time
        step stays while the rest is evenly spaced.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if np.array_equal(rows, np.arange(self.n_images)):
            return self
        if not self.image_axes:
            return replace(self, axes="I" + self.axes, shape=(1, *self.shape)).taken(rows)
        slowest, inner = self.image_axes[0], self.image_axes[1:]
        block = math.prod(map(self.length, inner))
        whole = rows[::block] // block
        if np.array_equal(rows, (whole[:, None] * block + np.arange(block)).reshape(-1)):
            return self._shortened(slowest, whole)
        kept = {letter: n for letter, n in zip(self.axes, self.shape, strict=True) if letter not in inner}
        steps = {letter: step for letter, step in self.steps.items() if letter in kept and letter != slowest}
        flat = replace(self, axes="".join(kept), shape=tuple(kept.values()), steps=steps, ragged=True)
        return flat._shortened(slowest, rows)

    def _shortened(self, letter: str, positions: np.ndarray) -> Hyperstack:
        shape = tuple(len(positions) if a == letter else n for a, n in zip(self.axes, self.shape, strict=True))
        before = self.chosen.get(letter, range(int(positions.max(initial=0)) + 1))
        steps, gaps = dict(self.steps), set(np.diff(positions).tolist())
        if letter in steps and len(gaps) == 1 and min(gaps) > 0:
            steps[letter] = Step(steps[letter].size * gaps.pop(), steps[letter].unit)
        elif len(positions) > 1:
            steps.pop(letter, None)
        chosen = tuple(before[p] for p in positions.tolist())
        return replace(self, shape=shape, steps=steps, chosen={**self.chosen, letter: chosen})


class ReaderChain:
    """Readers of equal blocks, numbered along an axis of their own."""

    def __init__(self, readers: Sequence[Any], letter: str) -> None:
        self.readers, self.letter, self.dtype = readers, letter, readers[0].dtype

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        """The plane at these positions of named axes."""
        block: np.ndarray = self.readers[at[self.letter]].take({key: n for key, n in at.items() if key != self.letter})
        return block


def projects(stack: Hyperstack, z: str | None, name: str) -> str | None:
    """How the planes of an image are put together for aligning, "max" or "mean"; None if every plane is an image.

    z: one of `Z_MODES`. "auto" projects where there is something to align besides the planes.
    """
    if z is not None and z not in Z_MODES:
        raise CongealError(f"z is {', '.join(Z_MODES[:-1])} or {Z_MODES[-1]}, not {z!r}")
    if z in ("project", "mean") and stack.length("Z") < 2:
        raise CongealError(f"{name} has no Z axis to project (its axes are {stack.axes}): leave out --z {z}")
    if stack.length("Z") < 2 or z == "planes":
        return None
    others = math.prod(stack.length(letter) for letter in stack.image_axes if letter != "Z")
    if z in (None, "auto"):
        return "max" if others > 1 else None
    if others < 2:
        raise CongealError(f"{name} is one Z stack: projected it is a single image; use --z planes to align its planes")
    return "max" if z == "project" else "mean"


# ---- OME-XML

OME_MARK = "openmicroscopy.org/Schemas/OME"  # in any text that looks like OME-XML


def parse_ome(xml: str) -> ET.Element:
    """The root of an OME-XML text that describes images; else `CongealError` with what is wrong with it."""
    try:
        root = ET.fromstring(xml)
    except (ET.ParseError, ValueError) as error:
        raise CongealError(first_line(error)) from error
    if not root.tag.endswith("}OME") or not any(True for _ in _pixels(root)):
        raise CongealError("it describes no image")
    return root


def read_ome(xml: str) -> tuple[dict[str, Step], tuple[str, ...]]:
    """Pixel sizes and time step, and the names of the channels, of the first image of a text."""
    pixels = next(_pixels(parse_ome(xml)))
    steps: dict[str, Step] = {}
    for letter, key, unit in (*((a, f"PhysicalSize{a}", "µm") for a in "XYZ"), ("T", "TimeIncrement", "s")):
        try:
            value = float(pixels.get(key, "nan"))
        except ValueError:
            continue
        if np.isfinite(value) and value > 0:
            steps[letter] = Step(value, pixels.get(f"{key}Unit", unit))
    names: list[str] = []
    for channel in _children(pixels, "Channel"):
        samples = channel.get("SamplesPerPixel", "1")
        names += [channel.get("Name", "")] * (int(samples) if samples.isdecimal() else 1)
    return steps, tuple(names) if any(names) else ()


def write_ome(xml: str, stack: Hyperstack, dtype: np.dtype) -> str:
    """The same text for the aligned stack: sizes and order of its planes anew, regions of interest left out.

    Everything else is kept: instrument, objective, colours of channels, times and stage positions of planes, notes. A
    short text takes the place of none, and of one that has not one image for each of the stack's.
    """
    root = parse_ome(xml) if xml else None
    if root is None or len([*_pixels(root)]) != stack.length("R"):
        root = parse_ome(_new_ome(stack, dtype))
    namespace = root.tag[1:].partition("}")[0]
    ET.register_namespace("", namespace)
    ET.register_namespace("xsi", "http://www.w3.org/2001/XMLSchema-instance")
    root.attrib.pop("UUID", None)
    for parent in [*root.iter()]:
        for name in ("ROI", "ROIRef", "TiffData", "BinData", "MetadataOnly"):
            for child in _children(parent, name):
                parent.remove(child)
    sizes = {f"Size{letter}": str(stack.length(letter)) for letter in "XYZT"} | {"SizeC": str(stack.n_channels)}
    order = sorted("CZT", key=stack.axes.rfind, reverse=True)
    n_pages = math.prod(map(stack.length, "TZC"))  # of one image of the file
    gone = ["BigEndian", "Interleaved"] + (["TimeIncrement", "TimeIncrementUnit"] if "T" not in stack.steps else [])
    for k, pixels in enumerate(_pixels(root)):
        for name in gone:
            pixels.attrib.pop(name, None)
        pixels.attrib.update(sizes, DimensionOrder="XY" + "".join(order))
        data = {"IFD": str(k * n_pages), "PlaneCount": str(n_pages)}
        pixels.insert(len(_children(pixels, "Channel")), ET.Element(f"{{{namespace}}}TiffData", data))
        _renumber_planes(pixels, stack)
    return ET.tostring(root, encoding="unicode")


def _new_ome(stack: Hyperstack, dtype: np.dtype) -> str:
    """OME-XML with what is known of a stack that came without; sizes are for the caller."""
    from tifffile import OmeXml

    facts: dict[str, Any] = {}
    for letter, step in stack.steps.items():
        key = "TimeIncrement" if letter == "T" else f"PhysicalSize{letter}"
        facts |= {key: step.size} | ({f"{key}Unit": step.unit} if step.unit else {})
    channels, samples = stack.length("C"), stack.length("S")
    if stack.channel_names:
        facts["Channel"] = {"Name": stack.channel_names[::samples]}
    axes = "CYXS" if samples > 1 else "CYX"
    shape = (channels, *stack.size, samples)[: len(axes)]
    xml = OmeXml(Creator="congeal")
    for _ in range(stack.length("R")):
        xml.addimage(dtype, shape, (channels, 1, 1, *stack.size, samples), axes=axes, **facts)
    return xml.tostring()


def _renumber_planes(pixels: ET.Element, stack: Hyperstack) -> None:
    """Keep the elements of the planes that were kept, under their new numbers."""
    for plane in _children(pixels, "Plane"):
        for letter, positions in stack.chosen.items():
            old = plane.get(f"The{letter}", "")
            if stack.ragged or (old and (not old.isdecimal() or int(old) not in positions)):
                pixels.remove(plane)
                break
            if old:
                plane.set(f"The{letter}", str(positions.index(int(old))))


def _children(element: ET.Element, name: str) -> list[ET.Element]:
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def _pixels(root: ET.Element) -> Iterator[ET.Element]:
    """The Pixels of every image, in order."""
    for image in _children(root, "Image"):
        yield from _children(image, "Pixels")
