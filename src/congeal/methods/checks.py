"""What a hyper-parameter may be, said in the type it is declared with.

    steps: Count = 600
    blurs: Some[NotNegative] = (2.0, 1.0, 0.0)

`Method.check_parameters` reads these types. A plain `int`, `float`, `bool` or `str` is checked for its kind alone (and
floats for being finite), `Any` not at all. NumPy's numbers count as Python's.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import torch

from congeal.errors import CongealError, did_you_mean

MOST_SEED = 2**32 - 1  # as in NumPy and scikit-learn
Item = TypeVar("Item")


@dataclass(frozen=True)
class Range:
    """Limits of a number.

    Parameters
    ----------
    least, most : float, optional
        The smallest and largest number that is allowed.
    above : float, optional
        The number must be larger than this one.
    every : int
        2: only every second whole number from `least` on.
    endless : bool
        Infinity is allowed too.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    every: int = 1
    endless: bool = False

    def holds(self, value: Any) -> bool:
        """Whether the number is within the limits."""
        if value != value or (abs(value) == math.inf and not self.endless):  # NaN is not itself
            return False
        if self.least is not None and (value < self.least or (self.every > 1 and (value - self.least) % self.every)):
            return False
        return (self.most is None or value <= self.most) and (self.above is None or value > self.above)

    def describe(self, kind: str) -> str:
        """The limits in words, after what kind of number it is."""
        if self.every == 2 and self.least is not None:
            kind = f"{'odd' if self.least % 2 else 'even'} number"
        article = "an" if kind[0] in "aeiou" else "a"
        if self.above is not None:
            limits = f" above {self.above:g}" + ("" if self.most is None else f", up to {self.most:g}")
        elif self.least is not None and self.most is not None:
            limits = f" from {self.least:.10g} to {self.most:.10g}"
        else:
            limits = "" if self.least is None else f" of {self.least:g} or more"
        return f"{article} {kind}{limits}"


_ANY = Range(endless=True)

Count = Annotated[int, Range(least=1)]
CountOrZero = Annotated[int, Range(least=0)]
NotNegative = Annotated[float, Range(least=0)]
Positive = Annotated[float, Range(above=0)]
PositiveOrEndless = Annotated[float, Range(above=0, endless=True)]
Share = Annotated[float, Range(least=0, most=1)]
Factor = Annotated[float, Range(above=0, most=1)]
Seed = Annotated[int, Range(least=0, most=MOST_SEED)]
Reference = Annotated[Any, Range(least=0)]  # a name, a file, an array or a position
Some = Annotated[tuple[Item, ...], Range(least=1)]  # limits of a tuple are those of its length


def accepts(hint: Any, value: Any) -> bool:
    """Whether the value is what the type says."""
    limits, hint = _limits(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return not isinstance(value, int | float | np.number) or limits.holds(value)
    if hint is None or hint is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(accepts(part, value) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple or origin is Sequence:
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and parts[-1] is not Ellipsis:
            return len(value) == len(parts) and all(map(accepts, parts, value))
        return limits.holds(len(value)) and all(accepts(parts[0], one) for one in value)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint in (int, float):
        allowed = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        return isinstance(value, allowed) and not isinstance(value, bool) and limits.holds(value)
    return isinstance(value, hint)


def describe(hint: Any) -> str:
    """What is allowed, in words that follow "must be"."""
    limits, hint = _limits(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe, parts)))
    if origin is Literal:
        return " or ".join(f"'{part}'" for part in parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"{len(parts)} values, each {' or '.join(dict.fromkeys(map(describe, parts)))}"
    if origin is tuple or origin is Sequence:
        return f"{'values' if limits is _ANY else 'one or more values'}, each {describe(parts[0])}"
    if hint is None or hint is type(None):
        return "None"
    if hint is Any:
        return f"a name, a file, an array or {limits.describe('position')}"
    known = {int: limits.describe("whole number"), float: limits.describe("number"), bool: "True or False", str: "text"}
    return known.get(hint, str(hint))


def plain_number(value: Any) -> Any:
    """NumPy's numbers as Python's, lists as tuples, also inside of them; anything else as it is.

    Files and torch's generators take no NumPy numbers.
    """
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(plain_number, value)) if isinstance(value, list | tuple) else value


def _limits(hint: Any) -> tuple[Range, Any]:
    """The limits that are written into a type, and the type without them."""
    if get_origin(hint) is not Annotated:
        return _ANY, hint
    hint, *notes = get_args(hint)
    return next((note for note in notes if isinstance(note, Range)), _ANY), hint


DEVICES = ("auto", "cpu", "cuda", "mps")


def find_device(name: str) -> torch.device:
    """The device of this name, as "cuda" or "cuda:1"; "auto" is a GPU if there is one."""
    if name.partition(":")[0] not in DEVICES:
        raise CongealError(f"unknown device '{name}'{did_you_mean(name, DEVICES)}: use {', '.join(DEVICES)}")
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise CongealError(f"there is no device '{name}' here: use auto or cpu") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
