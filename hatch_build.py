"""Builds native.c into a library beside it, where there is a C compiler; without one the package is pure Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/congeal/geometry/native.c")
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-fPIC", "-shared")


class NativeBuildHook(BuildHookInterface):
    """What hatchling calls before it makes a wheel or an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and tell hatchling to pack it."""
        try:
            library = build(Path(self.root))
        except (OSError, subprocess.CalledProcessError) as error:
            reason = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
            self.app.display_warning(f"native.c was not built, torch will draw images, which takes longer:\n{reason}")
            return
        build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")
        build_data["pure_python"] = False
        # It is no extension of Python: any version of it can load it.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def build(root: Path) -> Path:
    """The library, built anew. Raises where there is no compiler, or where it fails."""
    if sys.platform == "win32":
        raise OSError("native.c is written for GCC and Clang")
    source, compiler = root / SOURCE, shlex.split(os.environ.get("CC") or "cc")
    library, half = source.with_name("libnative.so"), source.with_name(f"libnative-{os.getpid()}.so")
    try:
        subprocess.run([*compiler, *FLAGS, "-o", half, source], check=True, capture_output=True, text=True)
        os.replace(half, library)
    finally:
        half.unlink(missing_ok=True)
    return library
