"""The report of one run."""

from __future__ import annotations

from pathlib import Path

from congeal.files import write_text
from congeal.report.data import gather_run
from congeal.report.page import fill_template
from congeal.runs.folder import RunFolder


def write_report(run: RunFolder) -> Path:
    """Write RUN/report.html from what is in the folder; gives its path."""
    path = run / "report.html"
    write_text(path, fill_template("report.html.j2", **gather_run(run)))
    return path
