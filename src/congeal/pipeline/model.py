"""The method of a run, made from the options and checked before any work begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.images import ImageSource, Stack
from congeal.images.intensity import find_channels
from congeal.methods.base import Method
from congeal.methods.checks import find_device
from congeal.methods.registry import method_class, method_name
from congeal.methods.registry import preset as preset_method
from congeal.pipeline.initial_poses import StartOptions
from congeal.pipeline.options import AlignOptions

DEFAULT_METHOD, SEQUENCE, AUTO = "joint", "sequence", "auto"
# Words that methods for a set, and methods for a sequence, accept as a reference.
REFERENCES, SEQUENCE_REFERENCES = ("mean", "stack", "medoid"), ("first", "previous", "mean")
# Settings that `CongealGroups` has in common with the method that aligns each group.
SHARED_WITH_GROUPS = ("motion", "size", "random_state", "align_on", "kind", "guards")


def make_model(options: AlignOptions, start: StartOptions, images: ImageSource) -> Method:
    """The method that the options ask for; everything that can be refused is refused here."""
    name, preset = choose_method(start.method, options.preset, sequence=options.sequence)
    given = {
        **start.params,
        "motion": options.motion,
        "size": options.size,
        "random_state": options.seed,
        "device": options.device if takes_device(name) else None,
        "smooth": options.smooth,
    }
    if options.smooth is not None and (name != SEQUENCE or options.groups is not None):
        raise CongealError("--smooth is for images in an order: add --sequence")
    on_cpu = options.device in (None, AUTO) or find_device(str(options.device)).type == "cpu"
    if not on_cpu and not takes_device(name):
        raise CongealError(
            f"{name} computes on the CPU, not on '{options.device}': --device {options.device} is for dprc"
        )
    settings = preset | {key: value for key, value in given.items() if value is not None}
    params: Any = options.params or {}
    if options.groups is None:
        model = make_method(name, settings, params)
        set_reference(model, options.reference, images)
    elif str(options.reference) != AUTO:
        raise CongealError("a reference is one image, which groups do not share: leave out --reference or --groups")
    else:
        model = make_grouping(options.groups, name, settings, params, start.sorting_features)
    channel = model.align_on if options.channel is None else options.channel
    model.set_params(align_on=find_channels(images, channel))
    return model


def check_conflicts(options: AlignOptions) -> None:
    """Refuse a parameter of the method that is also given as an option."""
    params: Any = options.params or {}
    reference = None if options.reference == AUTO else options.reference
    given = {"random_state": ("seed", options.seed), "motion": ("motion", options.motion)}
    given |= {"device": ("device", options.device), "align_on": ("channel", options.channel)}
    for key, (name, value) in {**given, "reference": ("reference", reference)}.items():
        if value is not None and key in params:
            raise CongealError(
                f"the {name} is given twice, as {name} {value!r} and as the parameter {key}={params[key]!r}; "
                f"leave out one of them"
            )


def choose_method(method: str | None, preset: str | None, *, sequence: bool = False) -> tuple[str, dict[str, Any]]:
    """The name of the method that runs, and the parameters of the preset, if one is given."""
    if sequence:
        if preset is not None or (method is not None and method_name(method) not in (DEFAULT_METHOD, SEQUENCE)):
            raise CongealError("--sequence is a method of its own, for images in an order; leave out --method")
        return SEQUENCE, {}
    if preset is None:
        return method_name(method or DEFAULT_METHOD), {}
    name, params = preset_method(preset)
    if method is not None and method_name(method) not in (DEFAULT_METHOD, name):
        raise CongealError(
            f"the preset '{preset}' belongs to the method '{name}', not to '{method}'; leave one of them out"
        )
    return name, params


def make_method(name: str, settings: Mapping[str, Any], params: Mapping[str, Any]) -> Method:
    """The method with its hyper-parameters checked; a setting of None leaves the method's own."""
    if not isinstance(params, Mapping):
        raise CongealError(f"params are the method's parameters by name, a dict, not a {type(params).__name__}")
    model = method_class(name)()
    given = {key: value for key, value in settings.items() if value is not None}
    if given.get("motion") == AUTO and not chooses_motion(name):
        raise CongealError(
            f"{name} cannot choose its motion: give --motion {', '.join(model.motions[:-1])} or {model.motions[-1]}, "
            f"or leave it out for {model.motion}"
        )
    model.set_params(**given)
    known = model.get_params()
    for key, value in params.items():
        if isinstance(known.get(key), tuple):  # the command line has lists and single values
            value = tuple(value) if isinstance(value, list | tuple) else (value,)
        model.set_params(**{key: value})
    model.check_parameters()
    return model


def make_grouping(
    groups: int | str, name: str, settings: Mapping[str, Any], params: Mapping[str, Any], features: str | None
) -> Method:
    """`CongealGroups` that aligns each group with the method `name`; settings and params are that method's.

    groups: a number or its digits, "auto", or a CSV file with the columns id and group. features: the network whose
    features images are sorted by, if any.
    """
    inside = make_method(name, settings, params).get_params()
    text = str(groups)
    table = None if text.isdecimal() or text == AUTO else str(Path(text).resolve())
    if table is not None and not Path(text).is_file():
        raise CongealError(
            f"--groups is a number, auto, or a CSV file with the columns id and group, not {text!r}"
            + (": there is no such file" if text.endswith(".csv") else "")
        )
    count = int(text) if text.isdecimal() else AUTO
    given = [key for key, value in settings.items() if value is not None]
    chosen = {key: inside[key] for key in (*given, *params)}
    shared = {key: chosen.pop(key) for key in SHARED_WITH_GROUPS if key in chosen}
    own = {"n_groups": count, "table": table, "method": name, "method_params": chosen or None, "features": features}
    return make_method("groups", own | shared, {})


def takes_device(name: str) -> bool:
    """Whether the method of this name can compute elsewhere than on the CPU."""
    return "device" in method_class(name)().get_params()


def chooses_motion(name: str) -> bool:
    """Whether the method of this name can select the motion itself: "auto" is then its default."""
    return bool(method_class(name)().motion == AUTO)


def check_limit(limit: int | None) -> None:
    """Refuse a limit below two images before anything is written; a set of one image may be unreadable."""
    if limit is not None and limit < 2:
        raise CongealError(f"--limit {limit} leaves too few images: aligning a set needs at least two")


def set_reference(model: Method, reference: str | int, images: ImageSource) -> None:
    """Give the method its reference: "auto" is the method's own choice; a number is a position in the source."""
    text = str(reference)
    if text == AUTO:
        return
    known = SEQUENCE_REFERENCES if model.ordered else REFERENCES
    if text.isdecimal():
        if int(text) >= len(images):
            raise CongealError(
                f"there is no image {text} to be the reference: {images.name} has 0 to {len(images) - 1}"
            )
        model.set_params(reference=int(text))
    elif text in known:
        model.set_params(reference=text)
    elif text in SEQUENCE_REFERENCES:
        raise CongealError(f"the reference '{text}' is one of an image in an order: add --sequence")
    elif Path(text).is_file():
        model.set_params(reference=str(Path(text).resolve()))
    else:
        words = ", ".join(f"'{word}'" for word in (AUTO, *known))
        raise CongealError(f"the reference is {words}, an index or an image file, not {text!r}")
    model.check_parameters()


def use_stack_position(model: Method, stack: Stack) -> None:
    """Turn a reference given as a position in the source into one in the stack, which lacks skipped images."""
    reference = model.get_params().get("reference")
    if not isinstance(reference, int | np.integer):
        return
    position = int(np.searchsorted(stack.kept, reference))
    if position == len(stack.kept) or stack.kept[position] != reference:
        raise CongealError(f"image {reference} cannot be the reference: it was skipped, see skipped.csv")
    model.set_params(reference=position)
