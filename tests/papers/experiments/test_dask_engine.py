"""The same tasks on a real Dask cluster of processes."""

import os
import signal
import threading
from dataclasses import replace

import pytest

from hessence.papers.experiments.catalogue import find_experiment
from hessence.papers.experiments.dask_engine import dask_engine
from hessence.papers.experiments.jobs import EngineError
from hessence.papers.experiments.runner import collect
from hessence.papers.experiments.store import open_store
from tests.papers.experiments.runs import PATIENCE, SLEEPER, begun

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")  # which Dask needs
sleeper = find_experiment(str(SLEEPER))
SETTINGS = replace(sleeper.presets["quick"], tasks=10, seconds=0.05)


@pytest.fixture(scope="module")
def engine():
    # Workers that start on a busy machine may take longer than Dask waits.
    patient = dict.fromkeys(
        ("distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp"), f"{PATIENCE}s"
    )
    with dask.config.set(patient), dask_engine("local:2") as engine:
        yield engine


def test_a_local_cluster_listens_on_this_machine_alone(engine):
    here = psutil.Process()
    found = [c for p in (here, *here.children(recursive=True)) for c in p.net_connections("inet")]
    listening = {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


@pytest.fixture
def alone(tmp_path):
    (tmp_path / "alone").mkdir()
    with open_store(tmp_path / "alone") as store:
        return collect(sleeper, SETTINGS, 0, store)


def test_a_cluster_gives_the_same_records(engine, tmp_path, alone):
    with open_store(tmp_path) as store:
        assert collect(sleeper, SETTINGS, 0, store, engine).records == alone.records


def test_a_task_that_takes_its_worker_down_is_run_again(engine, tmp_path, alone):
    diary = tmp_path / "diary"
    diary.mkdir()
    mortal = replace(SETTINGS, diary=str(diary), deadly=(4,))
    with open_store(tmp_path) as store:
        result = collect(sleeper, mortal, 0, store, engine)
        assert len(store) == 10
    assert result.records == alone.records
    assert begun(diary)[4] == 2


def test_a_worker_killed_from_outside_loses_nothing(engine, tmp_path, alone):
    diary = tmp_path / "diary"
    diary.mkdir()
    seen = []

    def watch(done, total):
        seen.append(done)
        if done == 3:
            pid = int(next(diary.glob("[0-9]*")).name.split("-")[1])
            threading.Timer(0.01, os.kill, (pid, signal.SIGKILL)).start()

    with open_store(tmp_path) as store:
        settings = replace(SETTINGS, diary=str(diary))
        result = collect(sleeper, settings, 0, store, engine, watch)
        assert len(store) == 10
    assert result.records == alone.records
    assert seen == list(range(11))


def test_failures_come_back_as_failures(engine, tmp_path):
    with open_store(tmp_path) as store:
        result = collect(sleeper, replace(SETTINGS, broken=(1,)), 0, store, engine)
    assert [outcome.error for _, outcome in result.failures] == [
        "ArithmeticError: this one never works"
    ]


def test_a_schedulers_address(tmp_path, alone):
    options = {"processes": False, "protocol": "tcp", "dashboard_address": "127.0.0.1:0"}
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster,
        dask_engine(cluster.scheduler_address) as engine,
        open_store(tmp_path) as store,
    ):
        assert collect(sleeper, SETTINGS, 0, store, engine).records == alone.records


def test_nobody_at_an_address(monkeypatch):
    monkeypatch.setattr("hessence.papers.experiments.dask_engine.TIMEOUT", 1)
    with (
        pytest.raises(EngineError, match="no Dask cluster at tcp"),
        dask_engine("tcp://127.0.0.1:9"),
    ):
        pass


@pytest.mark.parametrize("target", ["local", "local:0", "local:two"])
def test_targets_that_make_no_sense(target):
    with pytest.raises(EngineError, match="local:N"), dask_engine(target):
        pass
