"""One self-contained HTML page per run, and one per comparison.

run_page.py    the page of a run                    comparison.py  the table and the page of a comparison
charts.py      numbers → geometry of charts         motion.py      what was done to the images
gallery.py     images, their numbers and error bars sections.py    groups, and pairs of matching images
pictures.py    picture files → data URIs            advice.py      numbers → sentences
page.py        template + values → HTML             templates/     `_style`, `_pieces`, `_script`: of all pages
"""

from __future__ import annotations

from congeal.report.run_page import write_report

__all__ = ["write_report"]
