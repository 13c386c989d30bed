"""Which code made a record: a hash of what computes it, so that no record outlives an edit.

The source of the whole library counts, to the last byte: a record depends on every formula that its
experiment calls. Of the file with the experiment itself, comments, docstrings, layout, drawing and
findings do not count; what `run` reaches by name does, and so do files in the same folder that it
imports.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FIGURES = Path(__file__).parent / "figures"
"""The experiments of the library, which count one by one."""


@functools.cache
def library() -> str:
    """Return a short hash of the library's source, but for the files of experiments.

    It is taken once in a process, which goes on with the code that it has loaded.
    """
    digest = hashlib.sha256()
    for path in sorted(ROOT.rglob("*.py")):
        if FIGURES not in path.parents:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def code_of(run: Callable[..., Any], settings: type) -> str:
    """Return what records of an experiment are keyed by: the library, and the code of its own."""
    return f"{library()}/{fingerprint(run, settings)}"


def fingerprint(run: Callable[..., Any], settings: type) -> str:
    """Return a short hash of the code behind `run`, in its own file.

    The methods of the settings class are part of it; its fields are not, since records are keyed by
    their values.
    """
    file = inspect.getsourcefile(run)
    if file is None:
        return ""
    tree = _stripped(Path(file))
    known = {name: node for node in tree.body for name in _defined(node)}
    waiting, reached = [run.__name__, settings.__name__], dict[str, str]()
    helpers: dict[Path, str] = {}
    while waiting:
        name = waiting.pop()
        if name in reached or name not in known:
            continue
        node = known[name]
        if name == settings.__name__ and isinstance(node, ast.ClassDef):
            fields = (ast.Assign, ast.AnnAssign)
            node.body = [item for item in node.body if not isinstance(item, fields)] or [ast.Pass()]
        reached[name] = ast.unparse(node)
        _gather_helpers(node, Path(file).parent, helpers)
        waiting += [child.id for child in ast.walk(node) if isinstance(child, ast.Name)]
    # A function without a name of its own in the file: then the whole file counts.
    pieces = [reached[name] for name in sorted(reached)]
    pieces = pieces if run.__name__ in reached else [ast.unparse(tree)]
    text = "\n".join([*pieces, *(helpers[path] for path in sorted(helpers))])
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


def _gather_helpers(node: ast.AST, folder: Path, helpers: dict[Path, str]) -> None:
    """Add the code of the folder's modules that a statement imports, and of those they import."""
    for item in ast.walk(node):
        match item:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names):
                modules = [module or "", *(f"{module or ''}.{alias.name}" for alias in names)]
            case _:
                continue
        for module in modules:
            path = folder / f"{module.rpartition('.')[2]}.py"
            if path not in helpers and path.is_file():
                tree = _stripped(path)
                helpers[path] = ast.unparse(tree)
                _gather_helpers(tree, folder, helpers)
