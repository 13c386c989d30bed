"""Tasks on a Dask cluster: one started here, or one that is running somewhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from hessence.papers.experiments.jobs import (
    Engine,
    EngineError,
    Job,
    Outcome,
    ignore_interrupts,
    most_workers,
    perform,
)

WINDOW = 256
"""Jobs handed to the scheduler at a time; more would only fill its memory."""

TIMEOUT = 20
"""Seconds to wait for a scheduler."""


@contextmanager
def dask_engine(target: str) -> Iterator[Engine]:
    """Connect to ``local:N`` (N worker processes here) or to a scheduler's address.

    A local cluster listens on this machine alone. Dask has no passwords: whoever reaches a
    scheduler can run code on its workers, so one elsewhere belongs behind a firewall, or TLS.
    Dask runs the tasks of a worker that dies on another one; an outcome counts when it has arrived
    here, once.
    """
    distributed = _distributed()
    with ExitStack() as stack:
        try:
            address: Any = target
            if workers := local_workers(target):
                address = stack.enter_context(
                    distributed.LocalCluster(
                        n_workers=workers,
                        threads_per_worker=1,
                        processes=True,
                        # Nobody is asked for a password: scheduler, workers and their pages
                        # are for this machine alone. The usual ports may be another cluster's.
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        worker_dashboard_address="127.0.0.1:0",
                        silence_logs=logging.CRITICAL,
                    )
                )
            client = stack.enter_context(distributed.Client(address, timeout=TIMEOUT))
            if workers:
                client.register_plugin(_uninterrupted())
        except (OSError, ValueError) as error:
            raise EngineError(f"there is no Dask cluster at {target}: {error}") from error
        yield lambda work: _outcomes(client, work)


def local_workers(target: str) -> int:
    """Return N of ``local:N``, or 0 for an address.

    Examples
    --------
    >>> local_workers("local:4"), local_workers("tcp://10.0.0.1:8786")
    (4, 0)
    """
    if not target.startswith("local"):
        return 0
    if not re.fullmatch(r"local:[1-9][0-9]{0,8}", target):
        raise EngineError(f"cluster must read local:N or be a scheduler's address, got {target!r}.")
    workers = int(target.partition(":")[2])
    if workers > most_workers():
        raise EngineError(f"cluster must be local:{most_workers()} at most, got {target!r}.")
    return workers


def _outcomes(client: Any, work: Sequence[Job]) -> Iterator[Outcome]:
    distributed = _distributed()
    waiting = iter(work)

    def submit(count: int) -> list[Any]:
        jobs = [job for _, job in zip(range(count), waiting, strict=False)]
        return [client.submit(perform, job, pure=False) for job in jobs]

    running = distributed.as_completed(submit(WINDOW))
    try:
        for future in running:
            outcome = future.result()
            future.release()
            for fresh in submit(1):
                running.add(fresh)
            yield outcome
    except distributed.KilledWorker as error:
        raise EngineError(
            "workers died several times over one task; out of memory? What is finished is kept."
        ) from error
    finally:
        client.cancel(list(running.futures))


def _uninterrupted() -> Any:
    """Return a plugin that leaves Ctrl-C to this process; workers started later get it too."""

    class Uninterrupted(_distributed().WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            ignore_interrupts()

    return Uninterrupted()


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise EngineError("clusters need Dask: pip install 'hessence[cluster]'.") from error
    return distributed
