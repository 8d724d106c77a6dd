"""One self-contained HTML page per run.

data.py     a run folder → plain values        pictures.py  picture files → data URIs
charts.py   numbers → geometry of charts       advice.py    numbers → what to try next
confidence.py  error bars of the poses
page.py     template + values → HTML           templates/   `_style`, `_pieces`, `_script` are shared by all pages
"""

from __future__ import annotations

from congeal.report.report import write_report

__all__ = ["write_report"]
