"""`Quality`, the numbers of an alignment and what they mean, and its notebook view: means before and after, the metrics
in sentences, the images that match least. Pictures are PNG files in memory; all that comes from a user is escaped.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from congeal.evaluation.verdict import COLLAPSED, Evidence, advise, judge

PICTURE_WIDTH_PX = 132
"""Width of a picture on the page."""
MIN_SMOOTH_WIDTH_PX = 100
"""Pictures narrower than this are enlarged with their pixels sharp."""
PAGE_STYLE = "font:14px/1.45 system-ui,sans-serif;max-width:46rem"


@dataclass(frozen=True)
class Thumbnail:
    """One image of a set, before and after."""

    id: str
    status: str
    score: float
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Preview:
    """Small pictures of a set: PNG files of its mean before and after, and its worst images."""

    before: bytes = field(repr=False)
    after: bytes = field(repr=False)
    width: int
    worst: tuple[Thumbnail, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Quality(Evidence):
    """How well a set is aligned, and whether the object is still there: the part of `metrics.json` that judges.

    APSNR alone rewards cheating: shrinking the object or pushing it out of the frame raises it without bound. The
    verdict rests on likeness, on the energy ratio and on the scale.

    Attributes
    ----------
    n_images, kind, likeness_before, likeness_after, …
        What was measured, see `congeal.evaluation.verdict.Evidence`.
    collapsed : bool
        The object was shrunk, enlarged or lost.
    verdict : str
        One word, one of `congeal.evaluation.verdict.VERDICTS`.
    advice : str
        What the verdict rests on and what to do, in one or two sentences.
    preview : Preview or None
        Small pictures of the set, for notebooks; not a number, and in no file.
    """

    collapsed: bool = True
    verdict: str = "failed"
    advice: str = ""
    preview: Preview | None = field(default=None, repr=False, compare=False)

    @classmethod
    def judged(cls, seen: Evidence) -> Quality:
        """The evidence, and what it means."""
        verdict = judge(seen)
        numbers = {one.name: getattr(seen, one.name) for one in dataclasses.fields(Evidence)}
        return cls(**numbers, collapsed=verdict in COLLAPSED, verdict=verdict, advice=advise(seen, verdict))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which knows neither NaN nor infinity: both become None."""
        values = dataclasses.asdict(dataclasses.replace(self, preview=None))
        del values["preview"]
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}

    def _repr_html_(self) -> str:
        """Notebook view: before and after, the numbers in words, the worst images."""
        return notebook_page(f"{self.verdict.capitalize()}. {self.advice}", describe_metrics(self), self.preview)


def describe_metrics(seen: Evidence) -> list[str]:
    """The metrics of an alignment, in sentences."""
    unlike = round((1 - seen.matching_share) * seen.n_images)
    said = [f"{seen.n_images:,} images" + (f", of which {unlike:,} do not match the others." if unlike else ".")]
    if math.isfinite(seen.likeness_after):
        said.append(
            f"Likeness of each image to the mean of the others: {seen.likeness_before:.2f} before, "
            f"{seen.likeness_after:.2f} after (1 is perfect)."
        )
    if math.isfinite(seen.improved_share):
        said.append(f"{100 * seen.improved_share:.0f} % of the images are more like the others than before.")
    if math.isfinite(seen.mean_scale):
        same = abs(seen.mean_scale - 1) < 0.005
        said.append("The object kept its size." if same else f"The object is {seen.mean_scale:.2f} times its size.")
    if seen.kind == "object" and math.isfinite(seen.energy_ratio):
        said.append(f"{100 * seen.energy_ratio:.0f} % of its brightness is still in the frame.")
    said.append(f"On average {100 * seen.out_of_frame_share:.0f} % of the frame has no image under it.")
    return said


def notebook_page(heading: str, sentences: Iterable[str], preview: Preview | None) -> str:
    """A small page for a notebook."""
    said = "".join(f"<li>{html.escape(one)}</li>" for one in sentences)
    parts = [f'<div style="{PAGE_STYLE}"><p><b>{html.escape(heading)}</b></p>']
    if preview is not None:
        means = [(preview.before, "mean before"), (preview.after, "mean after")]
        figures = [
            _framed(_image(data, f"{name} alignment", preview.width, PICTURE_WIDTH_PX), name) for data, name in means
        ]
        parts.append(_row(figures))
    parts.append(f'<ul style="margin:.4em 0;padding-left:1.3em">{said}</ul>')
    if preview is not None and preview.worst:
        parts.append('<p style="margin:.6em 0 .2em">Least like the others, before and after:</p>')
        figures = []
        for one in preview.worst:
            both = "".join(
                _image(data, f"{one.id} {side} alignment", preview.width, PICTURE_WIDTH_PX // 2)
                for data, side in ((one.before, "before"), (one.after, "after"))
            )
            score = "" if math.isnan(one.score) else f" {one.score:.2f}"
            figures.append(_framed(both, f"{one.id}{score}" + ("" if one.status == "ok" else f", {one.status}")))
        parts.append(_row(figures))
    return "".join([*parts, "</div>"])


def _row(figures: Sequence[str]) -> str:
    return f'<div style="display:flex;flex-wrap:wrap;gap:10px">{"".join(figures)}</div>'


def _framed(inside: str, caption: str) -> str:
    words = f'<figcaption style="font-size:12px;opacity:.75;max-width:{PICTURE_WIDTH_PX}px;overflow-wrap:anywhere">'
    return f'<figure style="margin:0">{inside}{words}{html.escape(caption)}</figcaption></figure>'


def _image(data: bytes, alt: str, width: int, shown: int) -> str:
    sharp = "image-rendering:pixelated;" if width < MIN_SMOOTH_WIDTH_PX else ""
    uri = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img src="{uri}" alt="{html.escape(alt)}" style="{sharp}width:{shown}px;background:#000">'
