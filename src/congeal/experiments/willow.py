"""PF-WILLOW; see wild.py."""

from __future__ import annotations

from congeal.experiments.wild import WILLOW

EXPERIMENT = WILLOW
