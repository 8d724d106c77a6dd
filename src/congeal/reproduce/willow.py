"""PF-WILLOW; see wild.py."""

from __future__ import annotations

from congeal.reproduce.wild import WILLOW

EXPERIMENT = WILLOW
