"""Which code made a record: a hash of what `run` consists of, so that edits never mix.

Comments, docstrings, layout, drawing and findings do not count; everything in the file that `run`
reaches by name does, and so do other files of this package it imports from.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = "hessence.papers.experiments"
FRAME = {f"{PACKAGE}.protocol", f"{PACKAGE}.settings"}
"""What experiments are declared with; it computes nothing."""


def fingerprint(run: Callable[..., Any], settings: type) -> str:
    """Return a short hash of the code behind `run`.

    The methods of the settings class are part of it; its fields are not, since records are keyed by
    their values.
    """
    file = inspect.getsourcefile(run)
    if file is None:
        return ""
    tree = _stripped(Path(file))
    known = {name: node for node in tree.body for name in _defined(node)}
    waiting, reached = [run.__name__, settings.__name__], dict[str, str]()
    helpers: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in reached or name not in known:
            continue
        node = known[name]
        if name == settings.__name__ and isinstance(node, ast.ClassDef):
            fields = (ast.Assign, ast.AnnAssign)
            node.body = [item for item in node.body if not isinstance(item, fields)] or [ast.Pass()]
        reached[name] = ast.unparse(node)
        _gather_helpers(node, helpers)
        waiting += [child.id for child in ast.walk(node) if isinstance(child, ast.Name)]
    # A function without a name of its own in the file: then the whole file counts.
    pieces = [reached[name] for name in sorted(reached)]
    pieces = pieces if run.__name__ in reached else [ast.unparse(tree)]
    text = "\n".join([*pieces, *(helpers[name] for name in sorted(helpers))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stripped(path: Path) -> ast.Module:
    """Parse a file and drop its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                item
                for item in body
                if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
            ] or [ast.Pass()]
    return tree


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (
                t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)
            )
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)


def _gather_helpers(node: ast.AST, helpers: dict[str, str]) -> None:
    """Add the code of this package's modules that a statement imports, and of those they import."""
    for item in ast.walk(node):
        if not isinstance(item, ast.ImportFrom) or not item.module:
            continue
        # What is imported from a package may be a module of it.
        for name in (item.module, *(f"{item.module}.{alias.name}" for alias in item.names)):
            if not name.startswith(f"{PACKAGE}.") or name in helpers or name in FRAME:
                continue
            if path := _module_file(name):
                tree = _stripped(path)
                helpers[name] = ast.unparse(tree)
                _gather_helpers(tree, helpers)


def _module_file(name: str) -> Path | None:
    """Return the file of a module, or None if the name is no module."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        # The name belongs to something inside a module, which has no modules of its own.
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
