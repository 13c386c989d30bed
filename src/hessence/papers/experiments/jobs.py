"""One task, packed so that any process can run it: plain data in, plain data out."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from hessence.papers.experiments.catalogue import find_experiment
from hessence.papers.experiments.datasets import MissingDataError
from hessence.papers.experiments.fingerprints import code_of
from hessence.papers.experiments.records import ordered_json, task_generator
from hessence.papers.experiments.settings import settings_from_json


@dataclass(frozen=True)
class Job:
    """A task with all it takes to run it; `experiment` is an id or a file."""

    index: int
    experiment: str
    settings: Mapping[str, Any]
    seed: int
    task: Mapping[str, Any]
    code: str
    """Which code its record is kept for; a worker with another makes none."""


@dataclass(frozen=True)
class Outcome:
    """A record as JSON text and the processor's time; else what went wrong, and the traceback."""

    index: int
    record: str = ""
    seconds: float = 0.0
    error: str = ""
    details: str = ""


Engine = Callable[[Sequence[Job]], Iterator[Outcome]]
"""Runs jobs and yields their outcomes as they come, in any order, each once."""


class EngineError(Exception):
    """Workers could not be started or kept alive; the text is one sentence for the user."""


def most_workers() -> int:
    """Return how many worker processes this machine may be asked for: four for each core."""
    return max(16, 4 * (os.cpu_count() or 1))


def perform(job: Job) -> Outcome:
    """Run a task; its own failures are an outcome like any other."""
    began = time.process_time()
    try:
        experiment = find_experiment(job.experiment)
        settings = settings_from_json(type(experiment.presets["quick"]), job.settings)
        if own_code(job.experiment) != job.code:
            raise ValueError(
                "this worker has other code than the run; give it the same and start again"
            )
        rng = task_generator(job.seed, experiment.id, job.task, experiment.common)
        for package in experiment.packages:
            import_module(package)
        with limited_threads(experiment.threads):
            record = experiment.run(settings, job.task, rng)
        if clash := sorted(set(record) & set(job.task)):
            raise ValueError(f"the record repeats fields of its task: {', '.join(clash)}")
        text = ordered_json(record)
    except Exception as error:
        return Outcome(job.index, error=_sentence(error), details=traceback.format_exc())
    return Outcome(job.index, record=text, seconds=time.process_time() - began)


@cache
def own_code(source: str) -> str:
    """Return the code of an experiment as this process has it; taken once, as it is loaded once."""
    experiment = find_experiment(source)
    return code_of(experiment.run, type(experiment.presets["quick"]))


def _sentence(error: Exception) -> str:
    """Return one line without a full stop; mistakes of the user need no name of a class."""
    said = " ".join(str(error).split()).rstrip(".")
    if said and isinstance(error, (MissingDataError, ValueError)):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Hold linear algebra to so many threads: their number changes the order of summation.

    That would make the last digits of a record depend on how many workers share the machine.
    """
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    with threadpool_limits(count):
        if torch:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
