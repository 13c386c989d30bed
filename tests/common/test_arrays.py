"""Arrays of any kind: what goes in comes out, and what cannot go in is named."""

import subprocess
import sys

import array_api_strict
import numpy as np
import pytest
import torch

import hessence as hs
from hessence._common.arrays import floating, numerical_rank, unit
from tests.oracle import KINDS, LOSSES, OWN
from tests.strategies import typical

KIND = {
    "numpy": np.asarray,
    "torch": torch.asarray,
    "strict": array_api_strict.asarray,
}
DTYPES = {"float32": 2e-5, "float64": 1e-12}


def converted(case, kind, dtype):
    """Return network, x and y of a case as arrays of another kind and precision."""

    def convert(array):
        return KIND[kind](np.asarray(array, dtype=dtype))

    net = type(case.net)(**{name: convert(weight) for name, weight in case.weights.items()})
    return net, convert(case.x), convert(case.y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("array", KIND)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_same_kind_and_precision_out(kind, loss, array, dtype):
    case = typical(kind, loss)
    net, x, y = converted(case, array, dtype)
    H = net.hessian(x, y, OWN.get(loss, loss))
    s = H.spectrum()
    results = [
        *(s.eigenvalues, s.values, s.trace, s.squared_norm, s.sharpness, s.norm, s.logabsdet),
        *(s.condition_number, s.spaces[0].value, H.dense(), H @ H.dense(), H.trace()),
        *(H.squared_norm(), H.ggn.spectrum().eigenvalues, H.functional.spectrum().eigenvalues),
        *(net(x), net.loss(x, y, OWN.get(loss, loss)), net.gradient(x, y, OWN.get(loss, loss))),
        *(space.vectors() for space in s.spaces),
        *(s.spaces[0].sample(1), net.parameters()),
    ]
    for result in results:
        assert isinstance(result, (np.generic, type(x)) if array == "numpy" else type(x))
        assert result.dtype == x.dtype
    truth = np.linalg.eigvalsh(case.hessian)[::-1]
    np.testing.assert_allclose(
        np.asarray(s.eigenvalues), truth, rtol=0, atol=DTYPES[dtype] * case.norm
    )
    assert s.verify(H).worst < DTYPES[dtype]
    exact = typical(kind, loss).hessian_operator.spectrum()
    assert s.inertia(DTYPES[dtype]) == exact.inertia(DTYPES[dtype])


@pytest.mark.parametrize("array", KIND)
@pytest.mark.parametrize("kind", ["ScalarLinear", "ScalarReLU"])
def test_anatomy_and_phase_of_any_kind(kind, array):
    case = typical(kind)
    net, x, y = converted(case, array, "float64")
    anatomy = net.anatomy(x, y)
    assert type(anatomy.sharpness) is type(x) or array == "numpy"
    assert float(anatomy.sharpness) == pytest.approx(np.linalg.eigvalsh(case.hessian)[-1])
    assert net.phase(x, y) == case.net.phase(case.x, case.y)


@pytest.mark.parametrize("array", KIND)
def test_close_weights_take_another_route_to_their_distance(array):
    w = np.asarray([1.0, 2.0, 3.0])
    convert = KIND[array]
    for v in (w, -w, w * (1 + 1e-9)):
        net = hs.ScalarLinear(convert(w), convert(v))
        H = net.hessian(convert(np.asarray([1.0, 2.0])), convert(np.asarray([1.0, 0.5])))
        assert H.spectrum().verify(H).worst < 1e-14


@pytest.mark.parametrize("array", KIND)
@pytest.mark.parametrize(
    ("of_weights", "of_data"), [("float32", "float64"), ("float64", "float32")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision_is_the_wider_one(kind, of_weights, of_data, array):
    case = typical(kind)
    net, _, _ = converted(case, array, of_weights)
    _, x, y = converted(case, array, of_data)
    H = net.hessian(x, y)
    for result in (H.spectrum().eigenvalues, H.dense(), net(x), net.gradient(x, y), net.loss(x, y)):
        assert str(result.dtype).split(".")[-1] == "float64"


@pytest.mark.parametrize("kind", KINDS)
def test_integers_and_lists_become_float64(kind):
    case = typical(kind)
    weights = {name: np.round(3 * w).astype(int) for name, w in case.weights.items()}
    x, y = np.round(3 * case.x).astype(int), np.round(3 * case.y).astype(int)
    make = type(case.net)
    whole = make(**{name: w.astype(float) for name, w in weights.items()}).hessian(
        x.astype(float), y.astype(float)
    )
    for convert in (lambda a: a, lambda a: a.astype(np.int8), lambda a: a.tolist()):
        net = make(**{name: convert(w) for name, w in weights.items()})
        H = net.hessian(convert(x), convert(y))
        assert H.dtype == np.float64
        np.testing.assert_array_equal(H.dense(), whole.dense())


def test_integers_follow_the_other_arguments():
    net = hs.ScalarLinear(torch.tensor([1.0, 2.0]), [1, 2])
    assert net.v.dtype == torch.float32
    assert net([1, 2, 3]).dtype == torch.float32
    assert net.hessian([1, 2], [0, 1]).spectrum().eigenvalues.dtype == torch.float32


# What cannot go in.

W, X = np.asarray([1.0, 2.0, 3.0]), np.asarray([1.0, -1.0, 2.0])
BAD = {
    "nan": (np.asarray([1.0, np.nan, 2.0]), ValueError, "{} contains NaN"),
    "infinity": (np.asarray([1.0, -np.inf, 2.0]), ValueError, "{} contains NaN or infinity"),
    "nan in a list": ([1.0, float("nan"), 2.0], ValueError, "{} contains NaN"),
    "empty": (np.asarray([]), ValueError, "{} is empty"),
    "empty list": ([], ValueError, "{} is empty"),
    "complex": (W + 0j, TypeError, "{} has type complex128"),
    "complex list": ([1j, 2, 3], TypeError, "{} must hold real numbers"),
    "string": ("abc", TypeError, "{} must be an array of real numbers, got str"),
    "strings": (["a", "b", "c"], TypeError, "{} must hold real numbers"),
    "string array": (np.asarray(["a", "b", "c"]), TypeError, "{} has type"),
    "objects": (W.astype(object), TypeError, "{} has type object"),
    "booleans": (W > 1, TypeError, "{} has type bool"),
    "dates": (W.astype(int).astype("M8[s]"), TypeError, "{} has type datetime"),
    "ragged": ([[1.0, 2.0], [3.0]], ValueError, "{} must be a rectangular"),
    "dictionary": ({}, TypeError, "{} must be an array of real numbers, got dict"),
    "float16": (W.astype(np.float16), TypeError, "{} has type float16: cast it"),
    "longdouble": (W.astype(np.longdouble), TypeError, "{} has type"),
    "torch": (torch.ones(3), TypeError, "{} a PyTorch array"),
    "strict": (array_api_strict.ones(3), TypeError, "{} a array_api_strict array"),
}
SLOTS = {
    "v": lambda bad: hs.ScalarLinear(W, bad),
    "b": lambda bad: hs.ScalarAffine(W, W, bad),
    "V": lambda bad: hs.DecoupledInputs(W[:, None], bad),
    "x": lambda bad: hs.ScalarLinear(W, W).hessian(bad, X),
    "y": lambda bad: hs.ScalarReLU(W, W).hessian(X, bad),
    "x of a prediction": lambda bad: hs.ScalarLinear(W, W)(bad),
    "y of a loss": lambda bad: hs.ScalarAffine(W, W, W).loss(X, bad),
    "x of a gradient": lambda bad: hs.ScalarLinear(W, W).gradient(bad, X),
    "y of an anatomy": lambda bad: hs.ScalarLinear(W, W).anatomy(X, bad),
    "x of a phase": lambda bad: hs.ScalarReLU(W, W).phase(bad, X),
    "y of moments": lambda bad: hs.Moments(X, bad),
    "theta": lambda bad: hs.ScalarLinear(W, W).with_parameters(bad),
}


@pytest.mark.parametrize("slot", SLOTS)
@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_named(slot, name):
    bad, error, message = BAD[name]
    with pytest.raises(error, match=message.format(slot.split()[0])):
        SLOTS[slot](bad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.bool])
def test_torch_precisions_that_are_refused(dtype):
    w = torch.ones(3)
    with pytest.raises(TypeError, match=f"v has type {str(dtype).removeprefix('torch.')}"):
        hs.ScalarLinear(w, w.to(dtype))


def test_none_in_place_of_an_array():
    with pytest.raises(TypeError, match="w must be an array"):
        hs.ScalarLinear(None, W)
    with pytest.raises(TypeError, match="x must be an array"):
        hs.ScalarLinear(W, W).hessian(None, X)
    with pytest.raises(ValueError, match="y is missing"):
        hs.ScalarLinear(W, W).hessian(X)


MISFITS = {
    "w of no axes": (lambda: hs.ScalarLinear(1.0, 1.0), "w must have shape"),
    "v of another width": (lambda: hs.ScalarLinear(W, W[:2]), "v must have the shape of w"),
    "b of another width": (lambda: hs.ScalarAffine(W, W, W[:2]), "b must have the shape of w"),
    "W of one axis": (lambda: hs.DecoupledInputs(W, W), "W must have shape"),
    "V transposed": (lambda: hs.DecoupledOutputs(np.ones((2, 3)), np.ones((3, 2))), "V must have"),
    "x as a column": (lambda: hs.ScalarLinear(W, W).hessian(X[:, None], X), "x must have shape"),
    "y as a column": (lambda: hs.ScalarLinear(W, W).hessian(X, X[:, None]), "y must have shape"),
    "x of a number": (lambda: hs.ScalarReLU(W, W).hessian(1.0, X), "x must have shape"),
    "y too short": (lambda: hs.ScalarLinear(W, W).hessian(X, X[:2]), "y must have one row"),
    "too few inputs": (
        lambda: hs.DecoupledInputs(np.ones((2, 3)), np.ones((2, 3))).hessian(np.ones((4, 3)), W),
        "y must have one row",
    ),
    "other inputs": (
        lambda: hs.DecoupledInputs(np.ones((2, 3)), np.ones((2, 3))).hessian(np.ones((3, 3)), W),
        "x must have shape",
    ),
    "other inputs to predict": (
        lambda: hs.DecoupledInputs(np.ones((2, 3)), np.ones((2, 3)))(np.ones((3, 3))),
        "x must have shape",
    ),
    "other outputs": (
        lambda: hs.DecoupledOutputs(np.ones((2, 3)), np.ones((2, 3))).hessian(X, np.ones((3, 3))),
        r"y \(n, 2\)",
    ),
    "theta too long": (
        lambda: hs.ScalarLinear(W, W).with_parameters(np.ones(7)),
        "theta must have",
    ),
    "theta of no axes": (lambda: hs.ScalarLinear(W, W).with_parameters(1.0), "theta must have"),
    "labels": (lambda: hs.ScalarLinear(W, W).hessian(X, X, "logistic"), "y must hold labels"),
    "loss": (lambda: hs.ScalarLinear(W, W).hessian(X, X, "mae"), "loss must be one of"),
    "cell": (lambda: hs.ScalarReLU(W, W).phase(X, X, cell="left"), "cell must be"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_arrays_that_do_not_fit_are_named(name):
    act, message = MISFITS[name]
    with pytest.raises(ValueError, match=message):
        act()


def test_large_but_finite_entries_are_not_infinite():
    _, w = floating(w=np.asarray([1e300, -1e300]))
    np.testing.assert_array_equal(w, [1e300, -1e300])


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300])
def test_unit_vectors_of_any_length(scale):
    vectors = scale * np.asarray([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(unit(vectors), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-15)


@pytest.mark.parametrize("kind", KIND)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (1, 1), (300, 4)])
def test_rank_is_that_of_numpy(shape, dtype, kind):
    rng = np.random.default_rng(0)
    for rank in range(min(shape) + 1):
        matrix = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
        matrix = (1e-30 * matrix).astype(dtype)
        singular = KIND[kind](np.linalg.svd(matrix, compute_uv=False))
        found = numerical_rank(singular, shape)
        assert found == rank == np.linalg.matrix_rank(matrix)


def test_the_rank_of_zeros():
    assert numerical_rank(np.zeros(2), (2, 3)) == numerical_rank(np.zeros(0), (0, 3)) == 0


def test_import_is_light():
    code = "import sys, hessence; print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
