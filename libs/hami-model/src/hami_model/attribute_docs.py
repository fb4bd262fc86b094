"""Docstrings under attributes, which Python itself does not keep: read from the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from types import ModuleType


@cache
def attribute_docs(owner: ModuleType | type) -> Mapping[str, str]:
    """The docstring of each annotated attribute of a module or class that has one, in their order."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body
    if isinstance(owner, type):
        definition = body[0]
        body = definition.body if isinstance(definition, ast.ClassDef) else []
    found: dict[str, str] = {}
    for statement, after in pairwise(body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
