"""The command line: one dataclass per command, each with a `run` that does it (and is told the command as typed).

Exit codes: 0 done (a bad result is done too, and said loudly), 2 wrong use (flags, paths, names, a folder that belongs
to another run), 1 failed during the work (nothing readable, disk full, a bug), 3 done, under --strict, with a result
that is neither good nor unchanged, 130 stopped with Ctrl-C.
Nothing heavy is imported at the top of these files: `congeal --help` must come at once.
"""

from congeal.cli.entry import COMMANDS, main

__all__ = ["COMMANDS", "main"]
