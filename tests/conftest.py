"""Settings of the whole test run."""

import os

# Idle threads that spin make a busy machine many times slower, not just twice; must be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
