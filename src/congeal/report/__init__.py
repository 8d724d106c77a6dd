"""One self-contained HTML page per run, and one per comparison.

run_page.py  the page of a run                   compare.py  the page of a comparison   tables.py  its table
charts.py    numbers → geometry of charts        motion.py   what was done to the images
gallery.py   images, thumbnails, error bars      groups.py, match_figure.py  sections of some runs
pictures.py  picture files → data URIs           advice.py   numbers → sentences
page.py      template + values → HTML            templates/  `_style`, `_pieces`, `_script` are shared by all pages
"""

from __future__ import annotations

from congeal.report.run_page import write_report

__all__ = ["write_report"]
