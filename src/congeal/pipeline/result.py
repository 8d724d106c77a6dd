"""What `align` and `apply` give back."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congeal.report.charts import two_figures
from congeal.transforms import Transforms


@dataclass(frozen=True)
class Result:
    """A finished run. It stands for its folder wherever a run folder is asked for.

    Attributes
    ----------
    metrics : dict
        The numbers of metrics.json.
    transforms : Transforms
        One row per image of the source: aligned_from_source in pixels of the originals.
    folder : Path
        The run folder.
    report : Path
        Its report.html.
    aligned : Path
        The folder of its aligned images.
    """

    metrics: dict[str, Any]
    transforms: Transforms
    folder: Path

    @property
    def report(self) -> Path:
        """The page that shows the run."""
        return self.folder / "report.html"

    @property
    def aligned(self) -> Path:
        """The folder of the aligned images; it is not there if they were not asked for."""
        return self.folder / "aligned"

    def __fspath__(self) -> str:
        return str(self.folder)

    def summary(self) -> str:
        """The outcome in a few lines."""
        m = self.metrics
        skipped = f" ({m['n_skipped']} skipped, see skipped.csv)" if m["n_skipped"] else ""
        motion = f"{m['motion']} (chosen)" if m.get("motion_asked") == "auto" else m["motion"]
        lines = [f"{m['n_images']} images aligned with {m['method']}, {motion}{skipped}"]
        if m.get("groups"):
            lines.append(f"groups        {_groups(m)}")
            hint = ((m.get("decisions") or {}).get("groups") or {}).get("advice")
            lines += [f"              {hint}"] if hint else []
        if m.get("likeness_after") is not None:
            likeness = f"{_shown(m.get('likeness_before'), 3)} → {_shown(m['likeness_after'], 3)}"
            share = m.get("improved_share")
            improved = "" if share is None else f", {100 * share:.0f} % of the images improved"
            lines.append(f"likeness      {likeness}{improved}")
        lines += [
            f"APSNR         {_shown(m['apsnr_before'])} → {_shown(m['apsnr_after'])} dB",
            f"energy ratio  {_shown(m['energy_ratio'])}",
            f"mean scale    {_shown(m['mean_scale'])}",
        ]
        if m.get("uncertainty_px") is not None:
            lines.append(f"pose error    {two_figures(m['uncertainty_px'])} px (median standard error)")
        lines += [
            f"verdict       {'COLLAPSED, ' if m['collapsed'] else ''}{m['verdict']}: {m['advice']}",
            f"report        {self.report.resolve()}",
        ]
        if self.aligned.is_dir():
            lines.append(f"aligned       {self.aligned.resolve()}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from congeal.report.page import picture

        paths = {"before": self.folder / ".work" / "mean_before.png", "after": self.folder / "mean.png"}
        pictures = {side: picture(path) for side, path in paths.items()}
        shown = "".join(
            f'<figure style="display:inline-block;margin:0 8px 0 0"><img src="{one["uri"]}" style="width:128px" '
            f'alt="mean of the images {side} alignment"><figcaption>mean {side}</figcaption></figure>'
            for side, one in pictures.items()
            if one
        )
        return f"{shown}<pre>{html.escape(self.summary())}</pre>"


def _groups(m: dict[str, Any]) -> str:
    sizes = [group["n_images"] for group in m["groups"]]
    words = [f"{size:,}" for size in sizes]
    if any(group["name"] != str(group["group"]) for group in m["groups"]):
        words = [f"{size:,} ({group['name']})" for group, size in zip(m["groups"], sizes, strict=True)]
    shown = ", ".join(words[:12]) + (", …" if len(sizes) > 12 else "")
    outside = m["n_images"] - sum(sizes)
    return f"{len(sizes)} of {shown} images" + (f"; {outside:,} in none" if outside else "")


def _shown(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
