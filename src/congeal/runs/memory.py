"""How much memory a process needed."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_memory_mb() -> float | None:
    """The most memory this process held at any time, in MB; None where the system does not tell.

    Linux's own record comes first: `getrusage` starts a child at its parent's peak.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return round(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024, 1)
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1024), 1)
