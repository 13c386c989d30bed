"""Finding experiments: in the library's own folder, and in files that users name."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import pkgutil
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hessence.papers.experiments import figures
from hessence.papers.experiments.protocol import Experiment
from hessence.papers.experiments.settings import nearest


class UnknownExperimentError(LookupError):
    """No experiment of that name; the text is one sentence for the user."""


@cache
def all_experiments() -> dict[str, Experiment[Any]]:
    """Return the library's experiments by their ids, in order."""
    found: dict[str, Experiment[Any]] = {}
    for module in pkgutil.iter_modules(figures.__path__):
        experiment = getattr(import_module(f"{figures.__name__}.{module.name}"), "EXPERIMENT", None)
        if experiment is None:
            continue
        if experiment.id in found:
            raise ValueError(f"two experiments have the id {experiment.id}.")
        found[experiment.id] = experiment
    return dict(sorted(found.items()))


def find_experiment(name: str) -> Experiment[Any]:
    """Return an experiment by its id, or from a file that holds an ``EXPERIMENT``.

    Examples
    --------
    >>> find_experiment("relu-cells").figures
    ('000 F1', '001 F2')
    >>> find_experiment("relu-cell")
    Traceback (most recent call last):
        ...
    hessence.papers.experiments.catalogue.UnknownExperimentError: there is no ...
    """
    if name.endswith(".py"):
        return _from_file(str(Path(name).resolve()))
    experiments = all_experiments()
    if name not in experiments:
        raise UnknownExperimentError(
            f"there is no experiment {name}; near it: {nearest(name, experiments)}."
        )
    return experiments[name]


@cache
def _from_file(file: str) -> Experiment[Any]:
    path = Path(file)
    if not path.is_file():
        raise UnknownExperimentError(f"there is no file {path}.")
    name = f"hessence_experiment_{path.stem}_{hashlib.sha256(file.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownExperimentError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UnknownExperimentError(
            f"{path} cannot be run: {type(error).__name__}: {error}"
        ) from error
    experiment = getattr(module, "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        raise UnknownExperimentError(f"{path} does not define EXPERIMENT.")
    return dataclasses.replace(experiment, source=file)
