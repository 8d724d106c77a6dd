"""Numbers of an alignment. limits.py holds every threshold; the rest is in quality.py."""

from congeal.metrics.quality import *  # noqa: F403
