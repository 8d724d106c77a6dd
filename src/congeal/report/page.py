"""From a template and its data to one HTML page; shared by all pages of the package."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from congeal.images.sources.remote import without_credentials
from congeal.report.charts import two_figures
from congeal.runs.folder import RunFolder

_LONE = re.compile("[\ud800-\udfff]")
TEMPLATES = Path(__file__).parent / "templates"


def fill_template(template: str, *, folder: Path | None = None, **data: Any) -> str:
    """Fill a template of `templates/`, or of another folder that uses the pieces here.

    Everything put into it is escaped, and a name it lacks is an error.
    """
    return shown_name(_environment(folder).get_template(template).render(**data))


@lru_cache(maxsize=4)
def _environment(folder: Path | None) -> jinja2.Environment:
    """Kept, because compiling the templates takes longer than filling them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATES] if folder is None else [folder, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, duration=duration, two_figures=two_figures)
    return environment


def shown_config(run: RunFolder) -> dict[str, Any]:
    """config.json as a page may show it: without passwords, whoever wrote the file."""
    return {k: without_credentials(v) if isinstance(v, str) else v for k, v in run.config.items()}


def shown_name(text: str) -> str:
    """A name that a page can hold: bytes of file names that are not UTF-8, which are lone surrogates here, as \\xff."""
    return _LONE.sub(lambda one: rf"\x{ord(one[0]) & 0xFF:02x}" if one[0] >= "\udc80" else "\ufffd", text)


def number(value: Any, digits: int = 2, unit: str = "") -> str:
    """A number for people; a dash where there is none."""
    if value is None or value != value:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    return f"{text} {unit}".rstrip()


def percent(share: float | None, digits: int = 1) -> str:
    """A share of 1 for people."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """A time for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None or seconds != seconds:
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"
