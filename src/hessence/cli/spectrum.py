"""``hessence spectrum script.py:build``: the spectrum of a user's model."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import json
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hessence as hs
from hessence._common.files import write_atomically
from hessence._common.progress import ProgressBar
from hessence.cli import CommandError
from hessence.papers.page import Picture

MARKED = 64
"""How many eigenvalues the picture of an exact spectrum marks at most."""


def add(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "spectrum",
        help="find the Hessian spectrum of a PyTorch model",
        description="Runs SCRIPT.py, as python would, and calls FUNCTION in it. Prints the "
        "eigenvalues and writes spectrum.json and spectrum.png. Options are named as the arguments "
        "of hessence.spectrum: where a message says closure=True, give --closure.",
    )
    # fmt: off
    option = parser.add_argument
    option("target", metavar="SCRIPT.py:FUNCTION",
           help="a function without arguments that returns model, data and loss")
    option("-k", type=_count, default=10, metavar="K",
           help="how many eigenvalues to estimate where none are exact, or 'all' (10)")
    option("--method", choices=("exact", "estimate"), help="insist on one of the two")
    option("--which", default="LA", choices=("LA", "SA", "LM", "BE"),
           help="largest, smallest, largest in magnitude, or both ends")
    option("--tol", type=float, default=1e-6, help="relative residual (1e-6)")
    option("--params", help='only these parameters, such as "blocks.*.attn.*"')
    option("--reduction", choices=("mean", "sum"),
           help="what a loss of one's own returns for a batch")
    option("--closure", action="store_true", help="the loss is a function of (model, batch)")
    option("--eval-mode", action="store_true", help="run the model in evaluation mode")
    option("--memory", type=float, metavar="GB",
           help="memory for data, graphs, and the vectors of trace and density")
    option("--probes", type=int, default=16, help="random vectors of the density (16)")
    option("--steps", type=int, default=64, help="products for each of them (64)")
    option("--seed", type=int, default=0, help="seed of all random vectors (0)")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (out)")
    option("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)
    # fmt: on


def run(options: argparse.Namespace) -> int:
    """Find the spectrum, print and draw it."""
    limits = {"k": 1, "probes": 1, "steps": 1, "seed": 0, "memory": 0}
    for name, least in limits.items():
        given = getattr(options, name)
        if given is not None and not given >= least:
            raise CommandError(f"{name} must be at least {least}, got {given:g}.")
    _require_place(options.out)
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("the picture needs matplotlib: pip install 'hessence[plot]'.")
    bar = ProgressBar(sys.stderr, "products")
    # Output of the script must not mix with the JSON.
    printed = sys.stderr if options.json else sys.stdout
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as remarks:
        model, data, loss = _built(load_function(options.target), options.target)
        warnings.simplefilter("always")
        try:
            result = _find(model, data, loss, options, bar)
        finally:
            bar.clear()
    picture = _picture(result)
    options.out.mkdir(parents=True, exist_ok=True)
    result.save(options.out / "spectrum.json")
    write_atomically(options.out / "spectrum.png", picture)
    for text in dict.fromkeys(str(remark.message) for remark in remarks):
        print(f"hessence: note: {text}", file=sys.stderr)
    if options.json:
        print(json.dumps(result.to_dict(), indent=1))
        return 0
    print(result)
    print(f"  {'exact' if result.exact else 'no closed form'}: {result.reason}")
    print(f"Picture and numbers: {options.out / 'spectrum.png'}, {options.out / 'spectrum.json'}")
    return 0


def _count(text: str) -> int | None:
    if text != "all" and not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number or 'all', got {text!r}")
    return None if text == "all" else int(text)


def _require_place(folder: Path) -> None:
    """Refuse a folder that cannot be made, before anything is computed."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), Path())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise CommandError(f"--out: {str(folder)!r} is not a folder that can be written to.")


def load_function(target: str) -> Callable[[], Any]:
    """Load ``script.py:function``, with the script's folder on the path as Python would have it."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise CommandError(f"the target must read SCRIPT.py:FUNCTION, got {target!r}.")
    path = Path(file)
    if not path.is_file():
        raise CommandError(f"there is no file {file!r}.")
    text = path.read_text(encoding="utf-8", errors="replace")
    if not re.search(rf"\b{re.escape(name)}\b|import \*", text):
        # A script that never mentions the function need not be run to find that out.
        raise CommandError(_missing(file, name, re.findall(r"\b(?:def|class) (\w+)", text)))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    # Data loaders with workers look the script up by its name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CommandError(f"{file} cannot be run: {_told(error)}") from error
    build: Callable[[], Any] | None = getattr(module, name, None)
    if build is None:
        names = [n for n, value in vars(module).items() if callable(value)]
        raise CommandError(_missing(file, name, names))
    if not callable(build):
        raise CommandError(f"{name} in {file} must be a function, got {type(build).__name__}.")
    return build


def _missing(file: str, name: str, names: list[str]) -> str:
    public = [other for other in names if not other.startswith("_")]
    close = difflib.get_close_matches(name, public, n=3, cutoff=0.0)
    hint = f"; near it: {', '.join(close)}" if close else ""
    return f"{file} has no function {name}{hint}."


def _built(build: Callable[[], Any], target: str) -> tuple[Any, Any, Any]:
    try:
        result = build()
    except Exception as error:
        raise CommandError(
            f"{target} failed{_place(error)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise CommandError(
            f"{target} must return model, data and loss, got {type(result).__name__}."
        )
    return (*result, None) if len(result) == 2 else result


def _place(error: Exception) -> str:
    """Return the innermost line of the user's own code in a traceback, if there is one."""
    paths = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    others = (str(Path(__file__).parents[1]), "<frozen", *paths)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(others):
            return f" in line {frame.lineno} of {Path(frame.filename).name}"
    return ""


def _told(error: Exception) -> str:
    return f"{type(error).__name__}{_place(error)}: {error}"


def _find(
    model: Any, data: Any, loss: Any, options: argparse.Namespace, bar: ProgressBar
) -> hs.Spectrum | hs.Estimate:
    if importlib.util.find_spec("torch") is None:
        raise CommandError("spectra of models need PyTorch: pip install 'hessence[torch]'.")
    bar.begin("eigenvalues and trace", None)
    try:
        alike = ("params", "reduction", "method", "which", "tol", "eval_mode", "probes", "steps")
        memory = None if options.memory is None else options.memory * 1e9
        result = hs.spectrum(
            model, data, loss, options.k, **{name: getattr(options, name) for name in alike},
            closure=options.closure or None, rng=options.seed, memory=memory, progress=bar.update,
        )  # fmt: skip
        if isinstance(result, hs.Estimate):
            done = result.products
            bar.begin("density", done + options.probes * options.steps)
            _ = result.density  # computed here, while the bar is shown
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    except Exception as error:
        # The error comes from the user's own code, or from PyTorch on its behalf.
        raise CommandError(f"the model cannot be run on its data: {_told(error)}") from error
    return result


def _picture(result: hs.Spectrum | hs.Estimate) -> bytes:
    from hessence.plotting.axes import new_figure

    figure, (ax,) = new_figure()
    if isinstance(result, hs.Spectrum):
        marked = [float(space.value) for space in result.ends(MARKED)]
        result.density.plot(ax, eigenvalues=marked)
    else:
        result.plot(ax)
    return Picture("spectrum", "", "", figure).to_png()
