"""Fills the template with a run's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from congeal.report.data import gather
from congeal.run import RunFolder, write_text

TEMPLATES = Path(__file__).parent / "templates"


def write_report(run: RunFolder) -> Path:
    """Write RUN/report.html from what is in the folder; gives its path."""
    path = run / "report.html"
    write_text(path, render(gather(run)))
    return path


def render(data: dict[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    # File names that are not UTF-8 arrive as lone surrogates, which no page can hold.
    return environment.get_template("report.html.j2").render(**data).encode("utf-8", "replace").decode("utf-8")


def number(value: Any, digits: int = 2, unit: str = "") -> str:
    """A number for people; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    return f"{text} {unit}".rstrip()
