"""Every result goes into a file, comes back equal, and survives a pickle."""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch

import hessence as hs
from hessence._common.files import KINDS, decoded, encoded
from hessence._loading import LATER
from hessence.models.history import History

DIAGONAL = np.concatenate([[9.0, 9.0, 5.0], np.linspace(-1.0, 2.0, 300)])


def estimate():
    H = hs.TwoLayerLinear(np.ones((90, 3)) / 9, np.ones((3, 90)) / 9).hessian(np.eye(3), np.eye(3))
    return (H + H.ggn).spectrum(3)


def model_results():
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    model, data = torch.nn.Sequential(*layers), (torch.randn(9, 3), torch.randn(9, 2))
    monitor = hs.Monitor(model, data, torch.nn.MSELoss(), k=2)
    monitor.measure(0)
    return {
        "estimate of a model": hs.spectrum(model, data, torch.nn.MSELoss(), k=None),
        "layers": hs.layer_spectra(model, data, torch.nn.MSELoss(), k=1),
        "history": monitor.history,
        "measurement": monitor.history[0],
        "check": hs.hessian(model, data, torch.nn.MSELoss()).check(),
    }


def results():
    net = hs.ScalarReLU([1.0, -2.0, 0.5], [0.5, 1.0, -1.0])
    H = net.hessian([1.0, -1.0, 0.3], [2.0, -1.0, 0.0])
    looked_at, x = estimate(), np.asarray([1.0, -1.0, 0.3])
    _ = looked_at.density
    return {
        "spectrum": H.spectrum(),
        "certificate": H.spectrum().verify(H),
        "estimate": estimate(),
        "estimate with a density": looked_at,
        "eigenpairs": hs.eigenpairs(np.diag(DIAGONAL), k=3),
        "eigenpairs in torch": hs.eigenpairs(torch.diag(torch.as_tensor(DIAGONAL)).float(), k=20),
        "density": hs.density(np.diag(DIAGONAL), probes=3, steps=9),
        "density of what is known": H.spectrum().density,
        "trace": hs.trace(np.diag(DIAGONAL), products=30),
        "trajectory": hs.gradient_descent(net, x, 2 * x, lr=0.1, steps=9),
        "trajectory that diverges": hs.gradient_descent(net, x, 2 * x, lr=9.0, steps=99),
        "trajectory of a linear network": hs.gradient_descent(
            hs.TwoLayerLinear(np.eye(2, 3), np.eye(3, 2)), np.eye(3), np.eye(3), lr=0.1, steps=4
        ),
        **model_results(),
    }


RESULTS = results()


@pytest.mark.parametrize("name", RESULTS)
def test_files_and_pickles(name, tmp_path):
    result, path = RESULTS[name], tmp_path / "result.json"
    result.save(path)
    again = hs.load(path)
    assert type(again) is type(result)
    assert again == result
    assert repr(again) == repr(result)
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert pickle.loads(pickle.dumps(result)) == result
    assert copy.deepcopy(result) == result
    assert len({type(part).__name__ for part in (result, again)}) == 1


@pytest.mark.parametrize("name", RESULTS)
def test_other_results_are_not_equal(name):
    others = [other for key, other in RESULTS.items() if not key.startswith(name.split()[0])]
    assert all(RESULTS[name] != other for other in others)
    assert RESULTS[name] != "a result"


def test_a_number_that_differs_in_its_last_bit_makes_a_difference():
    pairs = RESULTS["eigenpairs"]
    data = pairs.to_dict()
    data["eigenvalues"]["entries"][0] = np.nextafter(data["eigenvalues"]["entries"][0], 0)
    assert hs.Eigenpairs.from_dict(data) != pairs


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (70, 70)])
def test_arrays_come_back_to_the_bit(dtype, shape):
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    for given in (array, torch.as_tensor(array)):
        again = decoded(json.loads(json.dumps(encoded(given), allow_nan=False)))
        assert (again.dtype, again.shape) == (array.dtype, array.shape)
        assert again.tobytes() == array.tobytes()


def test_what_json_does_not_know():
    special = (np.nan, np.inf, -np.inf, np.asarray([np.nan, 1.0]), None, True, "word", 3)
    again = decoded(json.loads(json.dumps(encoded(special), allow_nan=False)))
    np.testing.assert_equal(again, special)
    with pytest.raises(TypeError, match="a set cannot be saved"):
        encoded({1})


@pytest.mark.parametrize("name", RESULTS)
def test_damaged_data_are_refused(name, tmp_path):
    data = RESULTS[name].to_dict()
    kind = KINDS[data["format"].removeprefix("hessence.").removesuffix("/1")]
    for damaged in ({}, [], {"format": "mine"}, {"format": data["format"]}):
        with pytest.raises((ValueError, KeyError)):
            kind.from_dict(damaged)
    path = tmp_path / "other.json"
    for content in ("{", "[]", '{"format": "mine"}', '{"format": "hessence.other/1"}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="path"):
            hs.load(path)


def without(key, value, at=None):
    """Return what puts a value into a field, or into one place of a list there."""

    def change(data):
        if at is None:
            data[key] = value
        else:
            data[key][at] = value

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("spectrum", without("multiplicities", 0, at=0)),
        ("spectrum", without("multiplicities", False, at=0)),
        ("spectrum", without("multiplicities", 1.5, at=0)),
        ("spectrum", without("multiplicities", "1", at=0)),
        ("spectrum", without("multiplicities", 2**62, at=0)),
        ("spectrum", without("values", "1.5", at=0)),
        ("spectrum", without("values", True, at=0)),
        ("spectrum", without("errors", {"number": "nan"}, at=0)),
        ("spectrum", without("exact", "no")),
        ("spectrum", without("method", ["closed form"])),
        ("spectrum", without("reason", 3)),
        ("batch", without("multiplicities", [1, 1, 1, 2], at=0)),
        ("estimate of a model", without("eigenvalues", True, at=0)),
        ("eigenpairs", lambda data: data["eigenvalues"]["entries"].__setitem__(0, "1.5")),
        ("trajectory", without("lr", {"number": "inf"})),
        ("trajectory", without("lr", float("inf"))),
        ("trajectory", without("lr", -1)),
    ],
)
def test_what_is_no_number_or_no_count_is_refused(name, change):
    batch = hs.ScalarLinear([[1.0, 2.0], [2.0, 3.0]], [[0.5, 1.0], [1.0, 2.0]])
    of_batch = batch.hessian([1.0, 2.0], [0.0, 1.0]).spectrum()
    result = of_batch if name == "batch" else RESULTS[name]
    data = json.loads(json.dumps(result.to_dict()))
    assert type(result).from_dict(data) == result
    change(data)
    with pytest.raises(ValueError, match="data is not a complete"):
        type(result).from_dict(data)


@pytest.mark.parametrize("spelt", [b"\\ud800", b"\xed\xa0\x80", b"\\uDFFF x"])
def test_half_a_character_is_none(tmp_path, spelt):
    """Python reads it, and then can neither print nor write it."""
    path = tmp_path / "trace.json"
    RESULTS["trace"].save(path)
    path.write_bytes(path.read_bytes().replace(b'"method": "', b'"method": "' + spelt))
    with pytest.raises(ValueError, match="does not hold JSON"):
        hs.load(path)
    hs.Trace(1.0, 0.0, 3, "\U0001f600").save(path)
    assert hs.load(path).method == "\U0001f600"


def test_a_file_that_is_longer_than_the_memory(tmp_path):
    path = tmp_path / "long.json"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    for read in (hs.load, History.load):
        with pytest.raises(ValueError, match=r"long\.json"):
            read(path)


def test_results_with_nan_compare(tmp_path):
    for result in (hs.Trace(1.0, np.nan, 3, "dense"), hs.Certificate(np.nan, None, None, 1, 0.0)):
        result.save(tmp_path / "result.json")
        assert hs.load(tmp_path / "result.json") == result


def test_bounds_that_are_infinite_are_saved(tmp_path):
    data = RESULTS["spectrum"].to_dict()
    data["errors"][0] = {"number": "inf"}
    spectrum = hs.Spectrum.from_dict(data)
    assert spectrum.errors[0] == np.inf
    spectrum.save(tmp_path / "spectrum.json")
    assert hs.load(tmp_path / "spectrum.json") == spectrum


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    RESULTS["trace"].save(path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        RESULTS["density"].save(path)
    assert hs.load(path) == RESULTS["trace"]
    assert os.listdir(tmp_path) == ["trace.json"]


def test_a_trajectory_from_a_file_says_that_its_networks_are_gone():
    again = pickle.loads(pickle.dumps(RESULTS["trajectory"]))
    np.testing.assert_array_equal(again.sharpness, RESULTS["trajectory"].sharpness)
    assert list(again.phase) == list(RESULTS["trajectory"].phase)
    for question in (lambda: again[0], lambda: again.spectrum(0)):
        with pytest.raises(ValueError, match="networks are gone"):
            question()


@pytest.mark.parametrize("kind", LATER)
def test_kinds_that_are_loaded_later_are_where_they_are_looked_for(kind):
    import_module(LATER[kind])
    assert KINDS[kind].__module__ == LATER[kind]


def test_kinds_that_are_loaded_at_once_need_no_entry():
    code = "import hessence; from hessence._common.files import KINDS; print(*KINDS)"
    known = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(KINDS) == set(known.stdout.split()) | set(LATER)


def rewritten(pattern, by):
    """Return a function that changes the text of a file."""
    return lambda data: json.loads(re.sub(pattern, by, json.dumps(data)))


DEEP = "[" * 100_000 + "]" * 100_000
BOMBS = {
    "levels": lambda data: data | {"products": json.loads("[" * 500 + "]" * 500)},
    "long numbers": lambda data: data | {"products": 10**400, "norm": 10**400},
    "texts": lambda data: {key: "a" if key != "format" else data[key] for key in data},
    "types": rewritten("float64|int64|bool", "S900000000"),
    "shapes": rewritten(r'"shape": \[\d*', '"shape": [7'),
    "negative": rewritten(r'"shape": \[\d*', '"shape": [-1'),
    "unequal": rewritten(r'"(errors|values)": \[', r"\g<0>0.5, "),
    "multiplicities": lambda data: data | {"multiplicities": [2**62] * len(data.get("labels", ()))},
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", RESULTS)
def test_bombs_are_refused_in_one_sentence(name, bomb, tmp_path):
    data = RESULTS[name].to_dict()
    damaged = BOMBS[bomb](data)
    if damaged == data:
        return
    path = tmp_path / "result.json"
    path.write_text(json.dumps(damaged), encoding="utf-8")
    if not any(damaged.get(key) != data[key] for key in data):
        # Fields that a result does not have may be anything.
        assert hs.load(path) == RESULTS[name]
        return
    with pytest.raises(ValueError, match=r"^data is not a complete [^\n]{0,300}$"):
        hs.load(path)


@pytest.mark.parametrize("content", [DEEP, b"\xff\xfe", b"", b"{}", "[" * 10**6])
def test_what_is_not_ours_is_refused(content, tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match="path"):
        hs.load(path)


def test_a_trajectory_diverges_at_one_of_its_steps():
    data = RESULTS["trajectory that diverges"].to_dict()
    for step in (-1, len(RESULTS["trajectory that diverges"]), 2**31):
        with pytest.raises(ValueError, match="diverged at none of its steps"):
            type(RESULTS["trajectory"]).from_dict(data | {"diverged": step})


def test_devices_and_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"regular file|directory"):
            hs.load(path)
