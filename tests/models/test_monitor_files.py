"""A monitor's history in files: whole, damaged, resumed, and written by one rank of several."""

import io
import json
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

import hessence as hs
from hessence.models._monitor_files import MonitorFiles
from hessence.models.history import History
from hessence.models.monitor import Monitor
from tests.models import monitored_run, monitored_shares
from tests.models.monitored import assert_equal, descend, small

ROOT = Path(__file__).parents[2]


def test_a_history_comes_back_bit_by_bit(tmp_path):
    model, data, loss = small()
    monitor = Monitor(model, data, loss, k=2, trace=10)
    for step in range(0, 9, 3):
        monitor.measure(step, lr=0.1 / (1 + step))
        descend(model, data, loss, 0.1)
    path = tmp_path / "history.json"
    monitor.history.save(path)
    assert_equal(History.load(path), monitor.history)
    assert_equal(hs.load(path), monitor.history)
    json.loads(path.read_text(), parse_constant=pytest.fail)
    again = Monitor(model, data, lambda m, b: loss(m(b[0]), b[1]), k=2, closure=True)
    again.measure(-3)
    again.history.save(path)
    assert_equal(History.load(path), again.history)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", "null", '{"format": "hessence.history/1"}',
     '{"format": "hessence.history/1", "parameters": 123, "k": 1, "records": [{}]}',
     "\x00\xff", "1" * 5000],
)  # fmt: skip
def test_a_damaged_history_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"run\.json .* damaged .* left as it is"):
        History.load(path)
    with pytest.raises(ValueError, match=r"run\.json"):
        Monitor(*small(), path=path)
    assert path.read_bytes() == content.encode("latin-1")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_half_a_history_is_refused_wherever_it_ends(tmp_path):
    monitor, path = Monitor(*small(), path=tmp_path / "run.json"), tmp_path / "run.json"
    monitor.measure(0)
    whole = path.read_text()
    for length in range(0, len(whole.rstrip()), 7):
        path.write_text(whole[:length])
        with pytest.raises(ValueError, match="damaged"):
            History.load(path)


def test_a_new_monitor_goes_on_with_the_history_and_as_cheaply(tmp_path):
    model, data, loss = small()
    path = tmp_path / "run.json"
    first = Monitor(model, data, loss, path=path)
    for step in range(5):
        first.measure(step)
        descend(model, data, loss, 0.01)
    second = Monitor(model, data, loss, path=path)
    assert_equal(second.history, first.history)
    record = second.measure(5)
    assert record.products <= 5 < first.history.products[0]
    assert record.ggn_products <= 5
    assert_equal(History.load(path), second.history)
    # What the vectors' file holds may be anything: then the search starts from nothing.
    for damage in (lambda f: f.unlink(), lambda f: f.write_bytes(b"PK\x03\x04nonsense"),
                   lambda f: np.savez(f, **{"hessian vectors": np.ones((1, 3))})):  # fmt: skip
        damage(path.with_suffix(".npz"))
        again = Monitor(model, data, loss, path=path)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "path: run.npz had no vectors", UserWarning)
            fresh = again.measure(5)
        assert fresh.products > 5
        assert abs(fresh.sharpness - record.sharpness) <= fresh.errors[0] + record.errors[0]


def test_going_back_to_an_earlier_step_replaces_what_came_after(tmp_path):
    model, data, loss = small()
    path = tmp_path / "run.json"
    first = Monitor(model, data, loss, path=path)
    for step in (0, 10, 20, 30):
        first.measure(step)
    second = Monitor(model, data, loss, path=path)
    np.testing.assert_array_equal(second.history.steps, [0, 10, 20, 30])
    second.measure(20)
    np.testing.assert_array_equal(History.load(path).steps, [0, 10, 20])
    second.measure(25)
    np.testing.assert_array_equal(History.load(path).steps, [0, 10, 20, 25])
    with pytest.raises(ValueError, match=r"^step must be greater than the last one, 25, got 20;"):
        second.measure(20)


def test_a_run_from_the_start_leaves_the_old_history_beside_the_new_one(tmp_path):
    model, data, loss = small()
    path = tmp_path / "run.json"
    first = Monitor(model, data, loss, path=path)
    for step in range(4):
        first.measure(step)
    before = path.read_bytes()
    second = Monitor(model, data, loss, path=path)
    assert not (tmp_path / "run.json.bak").exists()
    with pytest.warns(UserWarning, match=r"run.json had the history .* kept in run.json.bak\."):
        second.measure(0)
    second.measure(1)
    assert (tmp_path / "run.json.bak").read_bytes() == before
    np.testing.assert_array_equal(History.load(path).steps, [0, 1])
    third = Monitor(model, data, loss, path=path)
    with pytest.warns(UserWarning, match=r"kept in run.json.bak1\."):
        third.measure(0)
    assert (tmp_path / "run.json.bak").read_bytes() == before
    np.testing.assert_array_equal(hs.load(tmp_path / "run.json.bak1").steps, [0, 1])


def test_files_of_another_model_or_k_are_refused(tmp_path):
    model, data, loss = small()
    path = tmp_path / "run.json"
    Monitor(model, data, loss, path=path).measure(0)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"run\.json has the history of 1 eigenvalues .* of 2"):
        Monitor(model, data, loss, k=2, path=path)
    with pytest.raises(ValueError, match="with 123 parameters, not of 1 with 36"):
        Monitor(model, data, loss, path=path, params="2.weight")
    assert path.read_bytes() == before


def run_script(folder, *arguments):
    command = [sys.executable, "-m", monitored_run.__name__, str(folder), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    undisturbed, process = run_script(whole), run_script(killed, "pause")
    for step in range(18):
        assert int(process.stdout.readline()) == step
        process.stdin.write("\n")
        process.stdin.flush()
    process.kill()
    process.communicate()
    assert process.returncode == -9
    left = History.load(killed / "run.json")
    assert list(left.steps) in [list(range(n)) for n in (18, 19)]
    resumed = run_script(killed)
    out, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0
    # The last checkpoint was made at step 14.
    assert out.split()[0] == "14"
    undisturbed.communicate(timeout=300)
    history, expected = History.load(killed / "run.json"), History.load(whole / "run.json")
    np.testing.assert_array_equal(history.steps, np.arange(monitored_run.STEPS))
    np.testing.assert_array_equal(history.loss, expected.loss)
    np.testing.assert_array_equal(history.eigenvalues[:14], expected.eigenvalues[:14])
    for name, errors in (("eigenvalues", "errors"), ("ggn_eigenvalues", "ggn_errors")):
        distance = np.abs(getattr(history, name) - getattr(expected, name))
        assert (distance <= getattr(history, errors) + getattr(expected, errors)).all()
    assert history.products[14] < history.products[0]
    assert {entry.name for entry in killed.iterdir()} == {"run.json", "run.npz", "checkpoint.pt"}


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")
def test_all_ranks_get_the_same_records_and_the_first_one_writes(tmp_path):
    command = [sys.executable, "-m", monitored_shares.__name__]
    runs = [(0, 2), (1, 2), (0, 1)]
    processes = [
        subprocess.Popen([*command, str(rank), str(world), str(tmp_path)], cwd=ROOT)
        for rank, world in runs
    ]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    first, second, alone = (History.load(tmp_path / f"history-{w}-{r}.json") for r, w in runs)
    assert_equal(first, second)
    np.testing.assert_array_equal(first.steps, np.arange(8))
    np.testing.assert_array_equal(first.products, alone.products)
    for name in ("loss", "eigenvalues", "ggn_eigenvalues", "trace"):
        np.testing.assert_allclose(getattr(first, name), getattr(alone, name), rtol=1e-10)
    assert {entry.name for entry in (tmp_path / "seen-by-2-0").iterdir()} == {"run.json", "run.npz"}
    assert not list((tmp_path / "seen-by-2-1").iterdir())


def test_a_second_monitor_on_the_same_path_is_refused(tmp_path):
    path = tmp_path / "run.json"
    first, second = (Monitor(*small(), path=path) for _ in range(2))
    first.measure(0)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"run\.json was written by another monitor meanwhile"):
        second.measure(0)
    assert path.read_bytes() == before
    first.measure(1)
    # One that comes later goes on from what it finds; then the first is the one to be refused.
    third = Monitor(*small(), path=path)
    third.measure(2)
    with pytest.raises(ValueError, match="give every monitor a path of its own"):
        first.measure(2)
    np.testing.assert_array_equal(History.load(path).steps, [0, 1, 2])
    # A file that somebody has removed is nobody's.
    path.unlink()
    third.measure(3)
    np.testing.assert_array_equal(History.load(path).steps, [0, 1, 2, 3])


def bombs(path):
    """Damage a file of vectors in ways that a reader of archives may choke on."""
    content, arrays = path.read_bytes(), dict(np.load(path))
    for name, value in (("rows", np.ones((3, 2))), ("inside", np.ones((12, 5))),
                        ("largest", np.ones(0)), ("moves", np.ones((1, 5)))):  # fmt: skip
        np.savez(path, **arrays | {f"hessian {name}": value})
        yield
    for kind in (">f8", "<f2", np.longdouble, "<i8", "?"):
        np.savez(path, **{name: array.astype(kind) for name, array in arrays.items()})
        yield
    np.savez_compressed(path, **arrays | {"hessian rows": np.zeros((10**6, 123), np.float32)})
    yield
    path.write_bytes(content.replace(b"'shape': (1, 123)", b"'shape': (1" + b"0" * 4 + b",)"))
    yield
    path.write_bytes(content.replace(b"<f8", b"|O8"))
    yield
    rng = np.random.default_rng(0)
    for _ in range(6):
        damaged = bytearray(content)
        for at in rng.integers(len(content), size=5):
            damaged[at] = rng.integers(256)
        path.write_bytes(bytes(damaged))
        yield


@pytest.mark.parametrize("shape", [(10**9,), (10**9, 1), (0, 10**9), (2, 10**18), (-1, 10**9)])
@pytest.mark.parametrize("archived", [True, False])
def test_vectors_take_no_more_memory_than_their_file(tmp_path, shape, archived):
    path, stream = tmp_path / "run.npz", io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    path.write_bytes(stream.getvalue())
    if archived:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("hessian vectors.npy", stream.getvalue())
    tracemalloc.start()
    try:
        states = MonitorFiles(tmp_path / "run.json")._states()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert sum(array.size for own in states.values() for array in own.values()) == 0


def test_damaged_vectors_cost_products_and_nothing_else(tmp_path):
    model, data, loss = small()
    path = tmp_path / "run.json"
    Monitor(model, data, loss, path=path).measure(0)
    expected = Monitor(model, data, loss).measure(1)
    for _ in bombs(path.with_suffix(".npz")):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "path: run.npz had no vectors", UserWarning)
            found = Monitor(model, data, loss, path=path).measure(1)
        assert abs(found.sharpness - expected.sharpness) <= found.errors[0] + expected.errors[0]


@pytest.mark.parametrize("content", ["arrays", "text"])
def test_a_file_that_is_in_the_way_of_the_vectors_is_kept(tmp_path, content):
    path, vectors = tmp_path / "run.json", tmp_path / "run.npz"
    np.savez(vectors, data=np.arange(5)) if content == "arrays" else vectors.write_text("mine")
    before = vectors.read_bytes()
    monitor = Monitor(*small(), path=path)
    assert vectors.read_bytes() == before
    with pytest.warns(UserWarning, match=r"run\.npz had no vectors .* kept in run\.npz\.bak\."):
        monitor.measure(0)
    monitor.measure(1)
    assert (tmp_path / "run.npz.bak").read_bytes() == before
    # What a monitor has written itself is its own, also without the history.
    path.unlink()
    Monitor(*small(), path=path).measure(0)
    assert len(list(tmp_path.iterdir())) == 3
