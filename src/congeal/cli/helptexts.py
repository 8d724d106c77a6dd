"""Help texts that fill their lines: tyro keeps the line breaks of a docstring whose lines are indented."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import tyro


@cache  # commands are described once, however often they are asked for
def with_flowing_help(command: Any) -> Any:
    """The same class of options, the docstring of each as one paragraph."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(command))).body
    assert isinstance(definition, ast.ClassDef)
    kinds = get_type_hints(command, include_extras=True)
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            name, paragraph = ast.unparse(field.target), " ".join(str(text.value.value).split())
            command.__annotations__[name] = Annotated[kinds[name], tyro.conf.arg(help=paragraph)]
    return command
