"""One self-contained HTML page per run, and one per comparison.

run_page.py  the page of a run, and its sentences    comparison.py  the table and the page of a comparison
sections.py  images, error bars, groups, matches     motion.py      what was done to the images
charts.py    numbers → geometry of charts            page.py        templates, numbers in words, pictures
templates/   `_style`, `_pieces` and `_script` are those of all pages
"""

from __future__ import annotations

from congeal.report.run_page import write_report

__all__ = ["write_report"]
