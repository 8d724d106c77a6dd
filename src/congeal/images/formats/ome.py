"""OME-XML: what it says of a stack, and the same text about the aligned one."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import numpy as np

from congeal.errors import CongealError, first_line
from congeal.images.formats.hyperstack import Hyperstack, Step

SCHEMA = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
MARK = "openmicroscopy.org/Schemas/OME"
"""Text that looks like OME-XML has this in it."""
LETTERS = "TZCYXSR"
"""Axes that OME-TIFF has; R numbers the images of one file."""
_TYPES = {"float32": "float", "float64": "double"}


class BrokenOme(CongealError):
    """The text is no OME-XML; the message says what is wrong with it."""


def parse(xml: str) -> ET.Element:
    """The root of an OME-XML text that has at least one image in it."""
    try:
        root = ET.fromstring(xml)
    except (ET.ParseError, ValueError) as error:
        raise BrokenOme(first_line(error)) from error
    if not root.tag.endswith("}OME") or not any(True for _ in _pixels(root)):
        raise BrokenOme("it describes no image")
    return root


def known(xml: str) -> tuple[dict[str, Step], tuple[str, ...]]:
    """Pixel sizes and time step, and the names of the channels, of the first image of a text."""
    pixels = next(_pixels(parse(xml)))
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


def written(xml: str, stack: Hyperstack, dtype: np.dtype) -> str:
    """The same text for the aligned stack: sizes and order of its planes anew, regions of interest left out.

    Everything else is kept: instrument, objective, colours of channels, times and stage positions of planes, notes. A
    text that has not one image for each of the stack's is replaced by a short one.
    """
    root = parse(xml)
    if len([*_pixels(root)]) != stack.length("R"):
        return made(stack, dtype)
    namespace = root.tag[1:].partition("}")[0]
    ET.register_namespace("", namespace)
    ET.register_namespace("xsi", "http://www.w3.org/2001/XMLSchema-instance")
    root.attrib.pop("UUID", None)
    for region in _children(root, "ROI"):
        root.remove(region)
    n_pages = _n_pages(stack)
    for k, pixels in enumerate(_pixels(root)):
        for gone in ("BigEndian", "Interleaved"):
            pixels.attrib.pop(gone, None)
        for name, value in _sizes(stack).items():
            pixels.set(name, value)
        for name in ("TiffData", "BinData", "MetadataOnly"):
            for child in _children(pixels, name):
                pixels.remove(child)
        place = len(_children(pixels, "Channel"))
        data = {"IFD": str(k * n_pages), "PlaneCount": str(n_pages)}
        pixels.insert(place, ET.Element(f"{{{namespace}}}TiffData", data))
        _renumber_planes(pixels, stack)
        if "T" not in stack.steps:
            for name in ("TimeIncrement", "TimeIncrementUnit"):
                pixels.attrib.pop(name, None)
    for image in _descendants(root, "Image"):
        for reference in _children(image, "ROIRef"):
            image.remove(reference)
    return ET.tostring(root, encoding="unicode")


def made(stack: Hyperstack, dtype: np.dtype) -> str:
    """A short text from what is known of a stack that came without one."""
    ET.register_namespace("", SCHEMA)
    root = ET.Element(f"{{{SCHEMA}}}OME")
    n_pages, samples = _n_pages(stack), stack.length("S")
    for k in range(stack.length("R")):
        image = ET.SubElement(root, f"{{{SCHEMA}}}Image", {"ID": f"Image:{k}"})
        about = {"ID": f"Pixels:{k}", "Type": _TYPES.get(dtype.name, dtype.name), **_sizes(stack)}
        for letter, step in stack.steps.items():
            key = "TimeIncrement" if letter == "T" else f"PhysicalSize{letter}"
            about |= {key: repr(step.size)} | ({f"{key}Unit": step.unit} if step.unit else {})
        pixels = ET.SubElement(image, f"{{{SCHEMA}}}Pixels", about)
        for c in range(stack.length("C")):
            facts = {"ID": f"Channel:{k}:{c}", "SamplesPerPixel": str(samples)}
            if stack.channel_names and stack.channel_names[c * samples]:
                facts["Name"] = stack.channel_names[c * samples]
            ET.SubElement(pixels, f"{{{SCHEMA}}}Channel", facts)
        data = {"IFD": str(k * n_pages), "PlaneCount": str(n_pages)}
        ET.SubElement(pixels, f"{{{SCHEMA}}}TiffData", data)
    return ET.tostring(root, encoding="unicode")


def _sizes(stack: Hyperstack) -> dict[str, str]:
    sizes = {f"Size{letter}": str(stack.length(letter)) for letter in "XYZT"}
    order = [letter for letter in stack.axes if letter in "TZC"]
    order = [letter for letter in "TZC" if letter not in order] + order
    return {**sizes, "SizeC": str(stack.n_channels), "DimensionOrder": "XY" + "".join(reversed(order))}


def _n_pages(stack: Hyperstack) -> int:
    """Pages of one image of the file."""
    return stack.length("T") * stack.length("Z") * stack.length("C")


def _renumber_planes(pixels: ET.Element, stack: Hyperstack) -> None:
    """Keep what is said of the planes that are left, under their new numbers."""
    for plane in _children(pixels, "Plane"):
        if stack.ragged:
            pixels.remove(plane)
            continue
        for letter, positions in stack.chosen.items():
            old = plane.get(f"The{letter}")
            if old is None:
                continue
            if not old.isdecimal() or int(old) not in positions:
                pixels.remove(plane)
                break
            plane.set(f"The{letter}", str(positions.index(int(old))))


def _children(element: ET.Element, name: str) -> list[ET.Element]:
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def _descendants(root: ET.Element, name: str) -> Iterator[Any]:
    return (element for element in root.iter() if isinstance(element.tag, str) and element.tag.endswith(f"}}{name}"))


def _pixels(root: ET.Element) -> Iterator[ET.Element]:
    """The Pixels of every image, in order."""
    for image in _children(root, "Image"):
        yield from _children(image, "Pixels")
