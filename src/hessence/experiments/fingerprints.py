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

PACKAGE = "hessence.experiments."


def fingerprint(run: Callable[..., Any], settings: type) -> str:
    """Return a short hash of the code behind `run`; the settings class is keyed by its values."""
    file = inspect.getsourcefile(run)
    if file is None:
        return ""
    tree = _stripped(Path(file))
    known = {name: node for node in tree.body for name in _defined(node)}
    waiting, reached = [run.__name__], dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in reached or name == settings.__name__ or name not in known:
            continue
        node = known[name]
        reached[name] = ast.unparse(node) + _imported(node)
        waiting += [child.id for child in ast.walk(node) if isinstance(child, ast.Name)]
    text = "\n".join(reached[name] for name in sorted(reached))
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


def _imported(node: ast.stmt) -> str:
    """Return the code of a helper module of this package, if that is what a statement imports."""
    found = ""
    for item in ast.walk(node):
        if isinstance(item, ast.ImportFrom) and (item.module or "").startswith(PACKAGE):
            spec = importlib.util.find_spec(str(item.module))
            if spec is not None and spec.origin:
                found += ast.unparse(_stripped(Path(spec.origin)))
    return found
