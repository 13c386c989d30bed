"""Where tasks run: in this process, in worker processes, or on a Dask cluster."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from hessence.papers.experiments.dask_engine import dask_engine
from hessence.papers.experiments.jobs import (
    Engine,
    EngineError,
    Job,
    Outcome,
    ignore_interrupts,
    perform,
)

PATIENCE = 3
"""How often in a row workers may die before a single task is finished."""


def open_engine(jobs: int = 1, cluster: str | None = None) -> AbstractContextManager[Engine]:
    """Return the engine for a number of processes or a cluster, as a context."""
    if cluster is not None:
        return dask_engine(cluster)
    return _local(jobs)


@contextmanager
def _local(jobs: int) -> Iterator[Engine]:
    if jobs == 1:
        yield in_process
    else:
        yield lambda work: in_processes(work, jobs)


def in_process(work: Sequence[Job]) -> Iterator[Outcome]:
    """Run one job after another, here."""
    yield from map(perform, work)


def in_processes(work: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run jobs in worker processes; if one of these dies, its jobs are run again."""
    waiting = {job.index: job for job in work}
    deaths = 0
    while waiting:
        try:
            with closing(_pool(list(waiting.values()), workers)) as outcomes:
                for outcome in outcomes:
                    deaths = 0
                    del waiting[outcome.index]
                    yield outcome
        except _worker_death() as error:
            deaths += 1
            if deaths == PATIENCE:
                raise EngineError(
                    f"worker processes died {PATIENCE} times in a row; out of memory? "
                    "Fewer --jobs take less. What is finished is kept."
                ) from error


def _pool(work: Iterable[Job], workers: int) -> Any:
    joblib = _joblib()
    # A worker that has grown by 100 MB is replaced by a new one, and no job is lost: no news.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    parallel = joblib.Parallel(
        n_jobs=workers,
        backend="loky",
        return_as="generator_unordered",
        batch_size=1,
        initializer=prepare_worker,
        initargs=(os.getpid(),),
    )
    return parallel(joblib.delayed(perform)(job) for job in work)


def prepare_worker(parent: int) -> None:
    """End a worker process when the process that started it ends, and not before.

    A terminal sends Ctrl-C to all of them, and only the first should answer. If that one is killed
    it cannot tell the others, so they watch it.
    """
    ignore_interrupts()
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _worker_death() -> type[Exception]:
    death: type[Exception] = _joblib().externals.loky.process_executor.BrokenProcessPool
    return death


def _joblib() -> Any:
    try:
        import joblib
    except ImportError as error:
        raise EngineError(
            "several processes need joblib: pip install 'hessence[experiments]'."
        ) from error
    return joblib
