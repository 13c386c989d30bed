"""Running an experiment: what is in the store already is not run again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from hessence.papers.experiments.engines import in_process
from hessence.papers.experiments.fingerprints import code_of
from hessence.papers.experiments.jobs import Engine, Job, Outcome
from hessence.papers.experiments.protocol import Experiment, Record, Task
from hessence.papers.experiments.records import canonical_json, json_value
from hessence.papers.experiments.settings import SettingError
from hessence.papers.experiments.store import Key, Row, Store

MOST_TASKS = 100_000
"""More tasks would take days, and have been asked for by mistake."""

Watch = Callable[[int, int], None]
"""Told the number of finished tasks, and of all tasks."""


@dataclass(frozen=True)
class Collected:
    """What a run has: records in the order of the tasks, and the tasks that failed."""

    tasks: int
    records: list[Record]
    failures: list[tuple[Task, Outcome]]
    seconds: float
    """The processor's time for all records, in this run and earlier ones."""


def collect(
    experiment: Experiment[Any],
    settings: Any,
    seed: int,
    store: Store,
    engine: Engine = in_process,
    watch: Watch = lambda done, total: None,
) -> Collected:
    """Run the tasks that are not in the store, and return all records from there.

    Every record is in the store before the next one is looked at. A task that fails is left out,
    and the others go on.
    """
    tasks = list_tasks(experiment, settings)
    texts = [canonical_json(task) for task in tasks]
    key = run_key(experiment, settings, seed)
    done = store.read(key)
    fields = json_value(dataclasses.asdict(settings))
    source = experiment.source or experiment.id
    missing = [
        Job(i, source, fields, seed, task, key.code)
        for i, (task, text) in enumerate(zip(tasks, texts, strict=True))
        if text not in done
    ]
    failures = []
    finished = len(tasks) - len(missing)
    watch(finished, len(tasks))
    with closing(_outcomes(engine, missing)) as outcomes:
        for outcome in outcomes:
            if outcome.error:
                failures.append((tasks[outcome.index], outcome))
            else:
                store.write(key, texts[outcome.index], Row(outcome.record, outcome.seconds))
            finished += 1
            watch(finished, len(tasks))
    done = store.read(key)
    rows = [(task, done[text]) for task, text in zip(tasks, texts, strict=True) if text in done]
    return Collected(
        len(tasks),
        [{**task, **json.loads(row.record)} for task, row in rows],
        sorted(failures, key=lambda failure: failure[1].index),
        sum(row.seconds for _, row in rows),
    )


def list_tasks(experiment: Experiment[Any], settings: Any) -> list[Task]:
    """Return the tasks of an experiment in JSON's types; refuse duplicates, or no tasks at all."""
    tasks: dict[str, Task] = {}
    for task in map(json_value, experiment.tasks(settings)):
        if len(tasks) == MOST_TASKS:
            raise SettingError(
                f"{experiment.id}: these settings make more than {MOST_TASKS} tasks."
            )
        text = canonical_json(task)
        if text in tasks:
            raise SettingError(f"{experiment.id}: these settings make two tasks the same, {task}.")
        tasks[text] = task
    if not tasks:
        raise SettingError(f"{experiment.id}: these settings leave no tasks.")
    return list(tasks.values())


def run_key(experiment: Experiment[Any], settings: Any, seed: int) -> Key:
    """Return the key that distinguishes the records of one run from all others."""
    code = code_of(experiment.run, type(settings))
    return Key(experiment.id, code, canonical_json(dataclasses.asdict(settings)), seed)


def _outcomes(engine: Engine, jobs: list[Job]) -> Generator[Outcome, None, None]:
    """Run jobs as a generator, so that leaving early closes the engine's and ends its workers."""
    if jobs:
        yield from engine(jobs)
