"""``hessence reproduce``: the papers' figures."""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hessence._common.files import write_atomically
from hessence.cli import CommandError
from hessence.papers.experiments.catalogue import (
    UnknownExperimentError,
    all_experiments,
    find_experiment,
)
from hessence.papers.experiments.datasets import MissingDataError, require_data
from hessence.papers.experiments.engines import open_engine
from hessence.papers.experiments.jobs import Engine, EngineError, most_workers
from hessence.papers.experiments.listing import described, listing
from hessence.papers.experiments.outputs import FAILURES, folder_name, write_outputs
from hessence.papers.experiments.protocol import PRESETS, Experiment
from hessence.papers.experiments.runner import collect, list_tasks
from hessence.papers.experiments.settings import SettingError, changed, nearest
from hessence.papers.experiments.store import CorruptStoreError, InUseError, Store, open_store
from hessence.papers.judgements import findings_table
from hessence.papers.task_progress import TaskProgress

KEPT = "what is finished is kept, and the same command goes on from there."
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Plan:
    """An experiment with the settings it is to run with."""

    experiment: Experiment[Any]
    settings: Any


def add(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "reproduce", help="run the papers' experiments, draw their figures", add_help=False
    )
    # fmt: off
    option = parser.add_argument
    option("ids", nargs="*", metavar="ID", help="experiments, or files that hold one")
    option("-h", "--help", action="store_true", dest="helped",
           help="show this, or with an ID the fields that --set takes")
    option("--list", action="store_true", help="show what there is, or what the IDs are")
    option("--all", action="store_true", help="run everything there is")
    option("--preset", default="quick", metavar="NAME", help="quick (default) or paper")
    option("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes",
           help="change a setting; ID.FIELD=VALUE for one of several")
    option("--seed", type=int, default=0, help="seed of all random numbers (0)")
    option("--jobs", type=int, default=1, metavar="N",
           help="worker processes (1), up to four for each core")
    option("--cluster", metavar="WHERE",
           help="Dask: local:N, or a scheduler's address; Dask asks nobody for a password, so that "
           "whoever reaches a scheduler runs code there")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (out)")
    # fmt: on
    parser.set_defaults(run=run, usage=parser.format_help)


def run(options: argparse.Namespace) -> int:
    """Run experiments, or list them."""
    if options.helped and not options.ids:
        print(options.usage(), end="")
        return 0
    if options.list or options.helped:
        try:
            chosen = [find_experiment(name) for name in dict.fromkeys(options.ids)]
        except UnknownExperimentError as error:
            raise CommandError(str(error)) from error
        everything = list(all_experiments().values())
        print(described(chosen) if chosen else listing(everything, _columns()))
        return 0
    plans = _plans(options)
    runnable, without_data = _with_data(plans, strict=not options.all)
    try:
        with open_engine(options.jobs, options.cluster) as engine:
            options.out.mkdir(parents=True, exist_ok=True)
            with open_store(options.out) as store:
                whole = [_run_one(plan, options, store, engine) for plan in runnable]
    except (InUseError, CorruptStoreError, EngineError) as error:
        raise CommandError(str(error)) from error
    except sqlite3.Error as error:
        raise CommandError(f"cannot write to {options.out}: {error}; {KEPT}") from error
    except KeyboardInterrupt:
        print(f"hessence: stopped; {KEPT}", file=sys.stderr)
        return 130
    for sentence in without_data:
        print(f"hessence: left out: {sentence}", file=sys.stderr)
    return 0 if all(whole) and not without_data else 1


def _columns() -> int | None:
    """Return how wide lines may be: as wide as the terminal, or any if they go elsewhere."""
    limited = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return shutil.get_terminal_size().columns if limited else None


def _plans(options: argparse.Namespace) -> list[Plan]:
    """Check everything the user said before anything is written."""
    if options.all == bool(options.ids):
        both = ", not both" * options.all
        raise CommandError(f"name experiments, or say --all{both}; --list shows what there is.")
    if options.preset not in PRESETS:
        raise CommandError(f"there is no preset {options.preset}; there are quick and paper.")
    if not 1 <= options.jobs <= most_workers():
        raise CommandError(f"jobs must be between 1 and {most_workers()}, got {options.jobs}.")
    if not 0 <= options.seed <= LARGEST_SEED:
        raise CommandError(f"seed must be between 0 and {LARGEST_SEED}, got {options.seed}.")
    if options.cluster is not None and options.jobs != 1:
        raise CommandError("give either --jobs or --cluster.")
    if find_spec("matplotlib") is None or find_spec("threadpoolctl") is None:
        raise CommandError("experiments need more packages: pip install 'hessence[experiments]'.")
    try:
        if options.cluster is not None:
            from hessence.papers.experiments.dask_engine import local_workers

            local_workers(options.cluster)
        names = dict.fromkeys(options.ids or all_experiments())
        experiments: dict[str, Experiment[Any]] = {}
        for found in map(find_experiment, names):
            if experiments.setdefault(found.id, found) != found:
                raise CommandError(f"two of these experiments have the id {found.id}.")
        changes = _changes(options.changes, list(experiments))
        plans = [
            Plan(e, changed(e.presets[options.preset], changes[e.id])) for e in experiments.values()
        ]
        for plan in plans:
            list_tasks(plan.experiment, plan.settings)
        return plans
    except (UnknownExperimentError, SettingError, EngineError) as error:
        raise CommandError(str(error)) from error


def _changes(texts: Sequence[str], ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Sort ``FIELD=VALUE`` and ``ID.FIELD=VALUE`` by experiment."""
    changes: dict[str, dict[str, str]] = {name: {} for name in ids}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set must read FIELD=VALUE, got {text!r}.")
        owner, dot, field = name.strip().rpartition(".")
        if dot and owner not in changes:
            raise CommandError(
                f"{owner} is not among these experiments; {nearest(owner, ids)} are."
            )
        for each in [owner] if dot else ids:
            changes[each][field] = value
    return changes


def _with_data(plans: Sequence[Plan], strict: bool) -> tuple[list[Plan], list[str]]:
    """Tell the experiments that can run from those whose packages or data are missing."""
    runnable, missing = [], []
    for plan in plans:
        name = plan.experiment.id
        try:
            for package in plan.experiment.packages:
                if find_spec(package) is None:
                    raise MissingDataError(f"{package} is not installed.")
            require_data(plan.experiment.data(plan.settings))
            runnable.append(plan)
        except MissingDataError as error:
            if strict:
                raise CommandError(f"{name}: {error}") from error
            missing.append(f"{name}: {error}")
    return runnable, missing


def _run_one(plan: Plan, options: argparse.Namespace, store: Store, engine: Engine) -> bool:
    """Run one experiment, write its folder, and tell what came out."""
    experiment = plan.experiment
    folder = options.out / folder_name(experiment, plan.settings, options.preset)
    with TaskProgress(experiment.id, sys.stderr) as progress:
        collected = collect(experiment, plan.settings, options.seed, store, engine, progress.update)
    if collected.failures:
        details = "\n".join(f"{task}\n{outcome.details}" for task, outcome in collected.failures)
        task, outcome = collected.failures[0]
        count = f"{len(collected.failures)} of {collected.tasks} task{'s' * (collected.tasks != 1)}"
        what = f"{count} failed, the first, {dict(task)}: {outcome.error}"
        _tell(experiment, what, folder, details)
        return False
    try:
        found = write_outputs(
            folder, experiment, plan.settings, options.preset, options.seed, collected
        )
    except Exception as error:
        # The settings are ones the figure was not made for, or its author made a mistake.
        _tell(
            experiment,
            f"all tasks are finished and kept, but there is no figure: {error!r}",
            folder,
            traceback.format_exc(),
        )
        return False
    print(f"{experiment.title} ({', '.join(experiment.figures)})\n")
    print(findings_table(found).to_text())
    print(f"\nFigure, records and settings: {folder}\n", flush=True)
    return True


def _tell(experiment: Experiment[Any], what: str, folder: Path, details: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FAILURES, details)
    print(f"hessence: {experiment.id}: {what}; see {folder / FAILURES}.", file=sys.stderr)
