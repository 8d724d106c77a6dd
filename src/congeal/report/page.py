"""What all pages are built from: templates, numbers in words, and pictures as data URIs.

Pictures are small enough to be many in one page, with one contrast for all of them. Only the pages are changed, never a
file of the run; numbers are computed from the original grey levels.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from PIL import Image

from congeal.errors import CongealError
from congeal.images.sources.files import without_credentials
from congeal.report.charts import two_figures
from congeal.runs.folder import RunFolder

_LONE = re.compile("[\ud800-\udfff]")
TEMPLATES = Path(__file__).parent / "templates"
MAX_LISTED_NAMES, MAX_NAME_LENGTH = 200, 300
"""Names in one list of a page, and characters of each: a page stays small whatever the set is."""


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


def listed_skipped(run: RunFolder) -> dict[str, Any]:
    """The first skipped images with their reasons, and the number of all of them."""
    rows = run.read_rows("skipped.csv")
    shown = [{key: row[key][:MAX_NAME_LENGTH] for key in ("id", "reason")} for row in rows[:MAX_LISTED_NAMES]]
    return {"skipped": shown, "n_skipped": len(rows)}


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


# ---- pictures

LOW_CONTRAST_LEVELS = 110.0
"""Pictures that span fewer grey levels than this are stretched. Chosen by judgement: 16-bit pictures of microscopes
often span some dozens, photographs nearly all 256."""
TAIL_SHARE = 0.005
"""Share of the pixels at either end that the span of grey levels leaves out, so that a few hot pixels do not count."""
MAX_SAMPLED_PICTURES = 60
"""Number of pictures from which the contrast of a page is chosen: enough for its quantiles, read in a moment."""


@dataclass(frozen=True)
class Contrast:
    """Grey levels that are shown black and white."""

    black: float = 0.0
    white: float = 255.0

    @property
    def gain(self) -> float:
        """How many times larger differences look."""
        return 255.0 / (self.white - self.black)

    @property
    def stretched(self) -> bool:
        """Whether pictures are changed at all."""
        return self.gain > 1.0

    def shown(self, image: Image.Image) -> Image.Image:
        """The picture as it is shown."""
        if not self.stretched:
            return image
        plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
        table = np.clip((np.arange(256) - self.black) * self.gain, 0, 255).round().astype(np.uint8).tolist()
        return plain.point(table * len(plain.getbands()))


def contrast_of(paths: Iterable[Path], *, dark_ground: bool) -> Contrast:
    """One contrast for all these pictures.

    dark_ground: black is the background of objects and stays black; else it is the outside of photographs and is
    ignored.
    """
    counts = np.zeros(256)
    for image in _readable(paths):
        counts += np.array(image.convert("L").histogram()) / (image.width * image.height)
    counts[0] = 0.0
    if not counts.any():
        return Contrast()
    share = np.cumsum(counts) / counts.sum()
    black, white = float(np.searchsorted(share, TAIL_SHARE)), float(np.searchsorted(share, 1 - TAIL_SHARE))
    black = 0.0 if dark_ground else black
    if white - black >= LOW_CONTRAST_LEVELS or white - black < 1:
        return Contrast()
    margin = 0.05 * (white - black)
    return Contrast(max(0.0, black - margin), min(255.0, white + margin))


def _readable(paths: Iterable[Path]) -> Iterator[Image.Image]:
    """The pictures that can be read, up to a number of files."""
    for path in islice(paths, MAX_SAMPLED_PICTURES):
        image = None if path.is_symlink() else _read(path)
        if image is not None:
            yield image


def _read(path: Path) -> Image.Image | None:
    """The picture; None without a whole one, for which a page has a place."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            image.load()
    except Exception:  # damaged pictures raise nearly anything
        return None
    return image


MAX_SIDE_PX = 720
"""Longer side of a picture on a page: two lie beside each other on a screen. Chosen by judgement."""
MAX_PNG_BYTES = 150_000
"""A larger picture is written as JPEG, which takes a fraction of the space for photographs."""
FULL_RANGE = Contrast()


def picture(
    path: Path,
    longest: int = MAX_SIDE_PX,
    largest_png: int = MAX_PNG_BYTES,
    *,
    contrast: Contrast = FULL_RANGE,
    largest: int | None = None,
) -> dict[str, Any] | None:
    """A picture file as {uri, width, height}, made smaller where a page needs no more; None without a whole one.

    largest: bytes that it may take at most; what is larger loses quality first and then pixels.
    """
    if path.is_symlink():
        raise CongealError(f"{path} is a link, which is never followed; delete it and run 'congeal align' again")
    image = _read(path)
    if image is None:
        return None
    data = path.read_bytes()
    if max(image.size) > longest or contrast.stretched:
        image.thumbnail((longest, longest))
        data = encode_picture(contrast.shown(image), "PNG")
    kind = "png"
    if len(data) > largest_png:
        kind, shown = "jpeg", contrast.shown(image)
        data = encode_picture(shown, "JPEG", quality=85)
        while largest is not None and len(data) > largest and max(shown.size) > 32:
            shown = shown.reduce(2)
            data = encode_picture(shown, "JPEG", quality=70)
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"uri": uri, "width": image.width, "height": image.height}


def encode_picture(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as the bytes of a file of this kind; what is neither grey nor RGB becomes RGB."""
    buffer = io.BytesIO()
    (image if image.mode in ("L", "RGB") else image.convert("RGB")).save(buffer, kind, **options)
    return buffer.getvalue()
