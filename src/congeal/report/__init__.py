"""One self-contained HTML page per run: `data.py` reads the folder, `report.py` fills the template."""

from __future__ import annotations

from congeal.report.report import write_report

__all__ = ["write_report"]
