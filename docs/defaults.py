"""Part of the build of the manual: every documented parameter is shown with its own type and default.

Docstrings may name several parameters in one line (`motion, size, guards : see Method`). Griffe gives all of them the
type and default of the first one; this puts it right.
"""

from __future__ import annotations

from typing import Any

import griffe


class OwnTypesAndDefaults(griffe.Extension):
    """Loaded by name in mkdocs.yml."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        correct(pkg)


def correct(holder: griffe.Module | griffe.Class) -> None:
    for member in holder.members.values():
        if member.is_alias:
            continue
        if member.is_module or member.is_class:
            correct(member)
        if member.is_class and member.docstring is not None:
            own = {parameter.name: parameter for parameter in member.parameters}
            from_signature = {id(parameter.annotation) for parameter in own.values()}
            for section in member.docstring.parsed:
                for shown in section.value if section.kind is griffe.DocstringSectionKind.parameters else ():
                    if shown.name in own:
                        shown.value = own[shown.name].default
                        if id(shown.annotation) in from_signature:  # the docstring has no words for the type
                            shown.annotation = own[shown.name].annotation
