"""What was asked for, checked before any work begins."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, meant, require
from congeal.images import ImageSource, Stack
from congeal.images.channels import Channel, find_channels
from congeal.images.excluded import ExcludingSource
from congeal.images.film import check_film
from congeal.images.remote import without_credentials
from congeal.images.selection import chosen
from congeal.images.source import FINGERPRINT
from congeal.images.writers import FORMATS
from congeal.methods.base import Method
from congeal.methods.device import find_device
from congeal.methods.registry import method_class, method_name
from congeal.runs.folder import RunFolder

DEFAULT_METHOD = "deep"
SEQUENCE = "sequence"
TABLES = ("auto", "csv", "npz", "parquet")
# Words for a reference that methods know themselves.
REFERENCES = ("mean", "stack", "medoid")
ORDERED_REFERENCES = ("first", "previous", "mean")  # those of a sequence


def choose_method(method: str | None, preset: str | None, *, sequence: bool = False) -> tuple[str, dict[str, Any]]:
    """The name of the method that runs, and the parameters that the preset, if one is asked for, gives it."""
    if sequence:
        if preset is not None or (method is not None and method_name(method) not in (DEFAULT_METHOD, SEQUENCE)):
            raise CongealError("--sequence is a method of its own, for images in an order; leave out --method")
        return SEQUENCE, {}
    if preset is None:
        return method_name(method or DEFAULT_METHOD), {}
    from congeal.methods import registry

    name, params = registry.preset(preset)
    if method is not None and method_name(method) not in (DEFAULT_METHOD, name):
        raise CongealError(
            f"the preset '{preset}' belongs to the method '{name}', not to '{method}'; leave one of them out"
        )
    return name, params


def check_smooth(smooth: float, name: str, groups: int | str | None) -> dict[str, Any]:
    """The setting of a sequence; anything else has no order to smooth along."""
    if name != SEQUENCE or groups is not None:
        raise CongealError("--smooth is for images in an order: add --sequence")
    return {"smooth": smooth}


def refuse_twice(params: Mapping[str, Any], **given: Any) -> None:
    """Refuse a parameter of the method that is also given as an argument; `seed` is the argument for `random_state`,
    `channel` that for `align_on`.

    given: the arguments, None for what was not given.
    """
    for name, value in given.items():
        key = {"seed": "random_state", "channel": "align_on"}.get(name, name)
        if value is not None and key in params:
            raise CongealError(
                f"the {name} is given twice, as {name} {value!r} and as the parameter {key}={params[key]!r}; "
                f"leave out one of them"
            )


def make_method(name: str, settings: Mapping[str, Any], params: Mapping[str, Any]) -> Method:
    """The method with its hyper-parameters checked; a setting of None leaves the method's own."""
    if not isinstance(params, Mapping):
        raise CongealError(f"params are the method's parameters by name, a dict, not a {type(params).__name__}")
    model = method_class(name)()
    given = {key: value for key, value in settings.items() if value is not None}
    if given.get("motion") == "auto" and not chooses_motion(name):
        raise CongealError(
            f"{name} cannot choose its motion: give --motion {', '.join(model.motions[:-1])} or {model.motions[-1]}, "
            f"or leave it out for {model.motion}"
        )
    if "train" in given and "train" not in model.get_params():
        raise CongealError(f"{name} has no choice whether to train a network; --train is for {DEFAULT_METHOD}")
    model.set_params(**given)
    known = model.get_params()
    model.set_params(**{key: coerce(value, known.get(key)) for key, value in params.items()})
    model.check_parameters()
    return model


def device_setting(name: str, device: str | None) -> dict[str, str]:
    """The parameter `device` of a method that has it; the others compute on the CPU, and nothing else can be asked."""
    if device is None:
        return {}
    if takes_device(name):
        return {"device": device}
    if find_device(device).type != "cpu" and device != "auto":
        raise CongealError(f"{name} computes on the CPU, not on '{device}': --device {device} is for {DEFAULT_METHOD}")
    return {}


def takes_device(name: str) -> bool:
    """Whether the method of this name can compute elsewhere than on the CPU."""
    return "device" in method_class(name)().get_params()


def need_two(limit: int | None) -> None:
    """Refuse a limit that leaves nothing to align, before anything is written; a set of one image may be unreadable."""
    if limit is not None and limit < 2:
        raise CongealError(f"--limit {limit} leaves too few images: aligning a set needs at least two")


def chooses_motion(name: str) -> bool:
    """Whether the method of this name can find out which motion the images need: "auto" is then its own."""
    return bool(method_class(name)().motion == "auto")


def coerce(value: Any, default: Any) -> Any:
    """A value from the command line in the type of the parameter's default."""
    if isinstance(default, tuple):
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    return value


def set_reference(model: Method, reference: str | int, images: ImageSource) -> None:
    """Give the method its reference: "auto" is the method's own choice; a position is one in the source."""
    text = str(reference)
    if text == "auto":
        return
    if text.isdecimal():
        if int(text) >= len(images):
            raise CongealError(
                f"there is no image {text} to be the reference: {images.name} has 0 to {len(images) - 1}"
            )
        model.set_params(reference=int(text))
    elif text in (ORDERED_REFERENCES if model.ordered else REFERENCES):
        model.set_params(reference=text)
    elif text in ORDERED_REFERENCES:
        raise CongealError(f"the reference '{text}' is one of an image in an order: add --sequence")
    elif Path(text).is_file():
        model.set_params(reference=str(Path(text).resolve()))
    else:
        known = ORDERED_REFERENCES if model.ordered else REFERENCES
        words = ", ".join(f"'{word}'" for word in ("auto", *known))
        raise CongealError(f"the reference is {words}, an index or an image file, not {text!r}")
    model.check_parameters()


def set_channel(model: Method, channel: Channel, images: ImageSource) -> None:
    """Give the method the channels to align on, by number; those that do not exist are refused before any work."""
    wanted = model.align_on if channel is None else channel
    model.set_params(align_on=find_channels(images, wanted))


def asked_stack(channel: Channel, z: str | None) -> dict[str, Any]:
    """For config.json; what was not asked for is not written, so that older runs can be resumed."""
    asked = {"channel": channel, "z": None if z == "auto" else z}
    return {name: value for name, value in asked.items() if value is not None}


def use_stack_position(model: Method, stack: Stack) -> None:
    """Turn a reference given as a position in the source into one in the stack, which lacks skipped images."""
    reference = model.get_params().get("reference")
    if not isinstance(reference, int | np.integer):
        return
    position = int(np.searchsorted(stack.kept, reference))
    if position == len(stack.kept) or stack.kept[position] != reference:
        raise CongealError(f"image {reference} cannot be the reference: it was skipped, see skipped.csv")
    model.set_params(reference=position)


def check_formats(images: ImageSource, output_format: str, transforms_format: str) -> None:
    """Refuse formats there are none of, those that cannot hold the images, and those whose package is missing."""
    if output_format not in FORMATS:
        raise CongealError(
            f"unknown output format '{output_format}'{meant(output_format, FORMATS)}: use {', '.join(FORMATS)}"
        )
    check_film(output_format, images)
    if transforms_format not in TABLES:
        raise CongealError(f"unknown format of transforms '{transforms_format}': use {', '.join(TABLES)}")
    for name, module in (("zarr", "zarr"), ("fits", "astropy.io.fits")):
        if output_format == name:
            require(module, name)
    if transforms_format == "parquet":
        require("pyarrow.parquet", "parquet")


def asked_format(transforms_format: str) -> dict[str, str]:
    """For config.json; "auto" is not written, so that runs from before there was a choice can be resumed."""
    return {} if transforms_format == "auto" else {"transforms_format": transforms_format}


def asked_exclusions(images: ImageSource) -> dict[str, Any]:
    """For config.json: how many images are excluded, and which in a few letters; skipped.csv lists them."""
    if not isinstance(images, ExcludingSource):
        return {}
    ids = "\n".join(images.excluded).encode("utf-8", "surrogatepass")
    return {"exclude": {"images": len(images.excluded), "digest": hashlib.sha256(ids).hexdigest()[:16]}}


def source_name(source: Any, images: ImageSource) -> str:
    """What to call the source in config.json: a path in full, so that it means the same from anywhere."""
    if isinstance(source, str | os.PathLike):
        # Not with its password: an address in a run folder is not opened again, so nobody needs it.
        if (part := chosen(str(source))) is not None:
            return part.full_name
        return str(Path(source).resolve()) if Path(source).exists() else without_credentials(str(source))
    return f"{images.name}: {len(images)} images"


def command_name(command: str | None) -> str | None:
    """The command as typed, without passwords, for config.json and the report."""
    return None if command is None else without_credentials(command)


def check_unchanged(run: RunFolder, images: ImageSource) -> str:
    """A run is about the images it began with; the same name may hold others by now. Gives their fingerprint."""
    now = images.fingerprint()
    before = run.state.get("fingerprint")
    if before is None or not str(before).startswith(FINGERPRINT):  # new, or begun by a version that looked at less
        run.remember(fingerprint=now)
    elif before != now:
        raise CongealError(f"the images of {images.name} changed since {run} began; choose another folder or delete it")
    return now
