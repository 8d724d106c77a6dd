"""Birds of CUB-200-2011; see wild.py."""

from __future__ import annotations

from congeal.experiments.wild import CUB

EXPERIMENT = CUB
