"""What --set says."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from congeal.errors import CongealError


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """["damping=0.1", "align_on=grey"] → {"damping": 0.1, "align_on": "grey"}."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise CongealError(f"--set takes KEY=VALUE, for example --set damping=0.1, not {setting!r}")
        try:
            values[key.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            values[key.strip()] = text.strip()
    return values


def settings_by_method(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{"lsc.damping": 0.1} → {"lsc": {"damping": 0.1}}."""
    nested: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        method, dot, key = name.partition(".")
        if not dot or not key:
            raise CongealError(f"--set takes METHOD.KEY=VALUE here, for example --set lsc.damping=0.1, not '{name}'")
        nested.setdefault(method, {})[key] = value
    return nested
