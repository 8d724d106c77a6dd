"""Commands around alignment: pack a source, list the methods."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from congeal.cli.arguments import (
    DebugFlag,
    Source,
    output,
)
from congeal.pipeline.options import Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pack(DebugFlag):
    """Turn any source into one memory-mapped array, once, so that later runs read it fast."""

    source: Source
    """Anything 'congeal align' takes."""
    output: Annotated[str, output("FILE")]
    """The file to write; give it to 'congeal align' as SOURCE."""
    limit: Count = None
    """Use only the first N images."""

    def run(self, command: str) -> None:
        """Write the array and print where it is."""
        from congeal.images import pack
        from congeal.opening import open_images

        packed = pack(open_images(self.source, limit=self.limit), self.output)
        print(f"packed {len(packed)} images into {Path(self.output).resolve()}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Methods(DebugFlag):
    """List the methods, their motions, and which of them can align new images."""

    def run(self, command: str) -> None:
        """Print the list."""
        print(describe_methods())


def describe_methods() -> str:
    """The methods in lines of text: name, what it does, motions, whether it can align new images."""
    from congeal.methods.registry import method_class, methods
    from congeal.pipeline.model import DEFAULT_METHOD

    lines = []
    for name, sentence in methods().items():
        cls = method_class(name)
        default = " (default)" if name == DEFAULT_METHOD else ""
        new = "also aligns new images" if cls.can_transform() else "this set only, no new images"
        lines += [f"{name}{default}", f"    {sentence}", f"    motions: {', '.join(cls.motions)}; {new}"]
    return "\n".join(lines)
