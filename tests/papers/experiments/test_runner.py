"""The runner: what belongs together, what is kept, and what does not depend on the workers."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from hessence.papers.experiments import jobs, runner
from hessence.papers.experiments.catalogue import find_experiment
from hessence.papers.experiments.engines import open_engine
from hessence.papers.experiments.jobs import EngineError
from hessence.papers.experiments.records import task_generator
from hessence.papers.experiments.runner import collect
from hessence.papers.experiments.settings import changed
from hessence.papers.experiments.store import open_store
from tests.papers.experiments.runs import SLEEPER, begun

sleeper = find_experiment(str(SLEEPER))
DRAWN = [420719010, 9216348, 569151343]
SETTINGS = replace(sleeper.presets["quick"], tasks=6, seconds=0.0)


def run(folder, settings=SETTINGS, seed=0, experiment=sleeper, jobs=1):
    with open_store(folder) as store, open_engine(jobs) as engine:
        return collect(experiment, settings, seed, store, engine)


@pytest.mark.parametrize("jobs", [2, 3])
def test_records_do_not_depend_on_the_number_of_workers(tmp_path, jobs):
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    alone = run(tmp_path / "one")
    assert len(alone.records) == 6
    assert run(tmp_path / "many", jobs=jobs).records == alone.records


def test_a_library_experiment_does_not_depend_on_the_workers_either(tmp_path):
    experiment = find_experiment("relu-cells")
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    alone = run(tmp_path / "one", experiment.presets["tiny"], experiment=experiment)
    many = run(tmp_path / "many", experiment.presets["tiny"], experiment=experiment, jobs=2)
    assert json.dumps(many.records) == json.dumps(alone.records)


def test_a_worker_that_dies_loses_nothing(tmp_path):
    diary = tmp_path / "diary"
    diary.mkdir()
    whole = run(tmp_path)
    mortal = replace(SETTINGS, diary=str(diary), deadly=(2,))
    assert run(tmp_path, mortal, jobs=2).records == whole.records
    assert begun(diary)[2] == 2


def test_workers_that_keep_dying_end_the_run(tmp_path):
    # Without a diary, the task dies every time.
    with pytest.raises(EngineError, match="What is finished is kept"):
        run(tmp_path, replace(SETTINGS, tasks=1, deadly=(0,)), jobs=2)


def test_workers_with_other_code_make_no_records(tmp_path, monkeypatch):
    """A cluster's may have another version, or start after the library was edited."""
    whole = run(tmp_path)
    jobs.own_code.cache_clear()
    monkeypatch.setattr(runner, "code_of", lambda *_: "what the run started with")
    for workers in (1, 2):
        found = run(tmp_path, jobs=workers)
        assert found.records == []
        assert {o.error for _, o in found.failures} == {
            "this worker has other code than the run; give it the same and start again"
        }
    monkeypatch.undo()
    assert run(tmp_path).records == whole.records


def test_what_is_finished_is_not_run_again(tmp_path):
    diary = tmp_path / "diary"
    diary.mkdir()
    settings = replace(SETTINGS, diary=str(diary))
    assert run(tmp_path, settings) == run(tmp_path, settings)
    assert set(begun(diary).values()) == {1}


def test_other_settings_and_seeds_do_not_mix(tmp_path):
    first = run(tmp_path)
    doubled = run(tmp_path, changed(SETTINGS, {"scale": "2"}))
    other_seed = run(tmp_path, seed=1)
    assert [r["norm"] for r in doubled.records] == [2 * r["norm"] for r in first.records]
    assert not {r["norm"] for r in first.records} & {r["norm"] for r in other_seed.records}
    assert run(tmp_path).records == first.records
    with open_store(tmp_path) as store:
        assert len(store) == 18


def test_a_failing_task_leaves_the_others_alone(tmp_path):
    result = run(tmp_path, replace(SETTINGS, broken=(1, 4)))
    assert [r["draw"] for r in result.records] == [0, 2, 3, 5]
    assert [task["draw"] for task, _ in result.failures] == [1, 4]
    assert result.failures[0][1].error == "ArithmeticError: this one never works"
    assert "sleeper.py" in result.failures[0][1].details


def test_records_carry_their_tasks_in_order_and_in_plain_types(tmp_path):
    records = run(tmp_path, jobs=2).records
    assert [r["draw"] for r in records] == list(range(6))
    assert list(records[0]) == ["draw", "values", "norm", "sign"]
    assert isinstance(records[0]["values"], list)
    assert json.loads(json.dumps(records)) == records


def test_the_same_task_twice_is_an_authors_mistake(tmp_path):
    doubled = replace(sleeper, tasks=lambda settings: [{"draw": 0}, {"draw": 0}])
    with pytest.raises(ValueError, match=r"make two tasks the same, \{'draw': 0\}"):
        run(tmp_path, experiment=doubled)


def test_an_experiment_without_tasks_is_refused(tmp_path):
    empty = replace(sleeper, tasks=lambda settings: [])
    with pytest.raises(ValueError, match=r"these settings leave no tasks"):
        run(tmp_path, experiment=empty)


def test_tasks_without_end_are_refused(tmp_path):
    endless = replace(sleeper, tasks=lambda settings: ({"draw": i} for i in itertools.count()))
    with pytest.raises(ValueError, match=r"sleeper: these settings make more than 100000 tasks\."):
        run(tmp_path, experiment=endless)


def test_generators_are_the_same_on_every_machine():
    # Written down once: a change here would silently change every experiment's random numbers.
    draw = task_generator(7, "relu-cells", {"share": 0.5, "draw": 3}).integers(10**9, size=3)
    assert draw.tolist() == DRAWN
    reordered = task_generator(7, "relu-cells", {"draw": np.int64(3), "share": 0.5})
    assert reordered.integers(10**9, size=3).tolist() == DRAWN


def test_tasks_share_random_numbers_over_common_fields_only():
    def draw(task, common=("share",)):
        return task_generator(0, "x", task, common).normal()

    assert draw({"share": 0.5, "draw": 1}) == draw({"share": 0.9, "draw": 1})
    assert draw({"share": 0.5, "draw": 1}) != draw({"share": 0.5, "draw": 2})
    assert draw({"share": 0.5, "draw": 1}, ()) != draw({"share": 0.9, "draw": 1}, ())
