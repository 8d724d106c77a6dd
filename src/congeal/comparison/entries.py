"""Which methods are compared: names, their own settings, and the motion each of them gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from congeal.comparison.process import in_words
from congeal.errors import CongealError, did_you_mean
from congeal.geometry import MOTIONS
from congeal.methods.base import Method
from congeal.methods.checks import find_device
from congeal.methods.registry import method_class, method_name
from congeal.methods.registry import methods as known_methods
from congeal.pipeline.model import chooses_motion, make_method, takes_device
from congeal.report.comparison import LABEL

# What all methods of a comparison share, and the option that sets it.
SHARED = {"size": "--size", "random_state": "--seed", "align_on": "--channel"}


@dataclass
class Entry:
    """One row to be: `label` is the method's name, or name@variant. A `problem` is known before anything runs.

    params: all hyper-parameters in JSON's words, or those that were given if they do not fit the method.
    """

    label: str
    motion_asked: str | None
    params: Mapping[str, Any]
    model: Method | None = None
    problem: str | None = None

    @property
    def method(self) -> str:
        """Its name without the variant."""
        return self.label.partition("@")[0]


def read_labels(methods: str | Sequence[str]) -> list[str]:
    """ "all", "lsc,rasl" or a list → labels, each known and given once."""
    given = methods.split(",") if isinstance(methods, str) else methods
    labels = [plain_label(label.strip()) for label in given if label.strip()]
    known = ", ".join(known_methods())
    if labels == ["all"]:
        return list(known_methods())
    if not labels:
        raise CongealError(f"no methods to compare: give 'all' or some of {known}")
    for label in labels:
        if not LABEL.fullmatch(label):
            raise CongealError(f"'{label}' is not a method: write its name, or name@variant, for example lsc@stack")
        name = label.partition("@")[0]
        if method_name(name) not in known_methods():
            raise CongealError(f"the method '{name}' is not compared: choose from {known}")
        if labels.count(label) > 1:
            raise CongealError(f"'{label}' is given twice: call variants of a method {label}@one,{label}@two")
    return labels


def plain_label(label: str) -> str:
    """A label with the method's name as it is listed: "LSC@stack" is "lsc@stack"."""
    name, at, variant = label.partition("@")
    return f"{name.lower()}{at}{variant}"


def make_entries(
    methods: str | Sequence[str],
    params: Mapping[str, Mapping[str, Any]],
    motion: str | None,
    shared: Mapping[str, Any],
    device: str | None = None,
) -> list[Entry]:
    """One entry per label. Wrong names are an error; values a method refuses are a problem of its row.

    params: settings by label. shared: settings of all methods.
    """
    labels, params = read_labels(methods), {plain_label(str(label)): own for label, own in params.items()}
    if motion not in (None, "auto", *MOTIONS):
        hint = did_you_mean(str(motion), ("auto", *MOTIONS))
        raise CongealError(f"unknown motion '{motion}'{hint}: choose auto or one of {', '.join(MOTIONS)}")
    for label, settings in params.items():
        if label not in labels:
            raise CongealError(f"there are settings for '{label}', which is not compared: {', '.join(labels)} are")
        for key in SHARED.keys() & settings.keys():
            raise CongealError(f"'{label}.{key}' cannot be set: all methods of a comparison share it ({SHARED[key]})")
    for label in labels:
        for key, value in shared.items():  # what all share is not the problem of one
            method_class(label.partition("@")[0]).check_value(key, value)
    if device is not None:
        find_device(device)
    return [make_entry(Entry(label, motion, params.get(label, {})), shared, device) for label in labels]


def make_entry(entry: Entry, shared: Mapping[str, Any], device: str | None) -> Entry:
    """The entry with its model; whatever is wrong with its settings is noted as its problem."""
    try:
        settings = {**shared, "motion": motion_for(entry.method, entry.motion_asked)}
        if device is not None and takes_device(entry.method):
            settings["device"] = device
        model = make_method(entry.method, settings, entry.params)
        json.dumps(model.get_params())
    except TypeError:
        problem = "a setting is not a plain number or text, which is all that can be handed to its process"
        return replace(entry, problem=problem)
    except Exception as error:  # whatever is wrong with one method is no reason not to run the others
        return replace(entry, problem=in_words(error))
    return replace(entry, model=model, params=model.get_params())


def motion_for(name: str, asked: str | None) -> str | None:
    """The largest motion of the method that is contained in the one asked for; None for the method's own.

    "auto" is for methods that can choose; the others keep their own.
    """
    if asked is None:
        return None
    if asked == "auto":
        return asked if chooses_motion(name) else None
    own = method_class(name).motions
    contained = [motion for motion in MOTIONS[: MOTIONS.index(asked) + 1] if motion in own]
    if not contained:
        raise CongealError(f"{name} has no motion within {asked}: it has {', '.join(own)}")
    return contained[-1]
