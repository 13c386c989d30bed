"""Every network, under every loss, against the Hessian that PyTorch's autodiff finds."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import hessence as hs
from tests.oracle import KINDS, LOSSES, Case, assert_spectrum
from tests.strategies import cases, typical

pytestmark = pytest.mark.filterwarnings("ignore::hessence.KinkWarning")

EACH = [(kind, loss) for kind in KINDS for loss in LOSSES]
PARTS = {
    "hessian": (lambda H: H, lambda case: case.hessian),
    "ggn": (lambda H: H.ggn, lambda case: case.ggn),
    "functional": (lambda H: H.functional, lambda case: case.hessian - case.ggn),
}


@pytest.mark.parametrize(("kind", "loss"), EACH)
@given(data=st.data())
def test_spectrum_at_any_point(kind, loss, data):
    exponents = st.integers(-4, 4) if loss == "mse" else st.integers(-1, 0)
    case = data.draw(cases(kind, loss, exponents))
    assume(off_the_huber_threshold(case))
    H = case.hessian_operator
    np.testing.assert_allclose(H.dense(), case.hessian, rtol=0, atol=case.tolerance)
    assert_spectrum(H.spectrum(), case.hessian, case.tolerance)


def off_the_huber_threshold(case):
    if case.loss != "huber":
        return True
    residuals = np.abs(case.predictions.reshape(case.y.shape) - case.y)
    return bool((np.abs(residuals - 1) > 1e-9).all())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("kind", "loss"), EACH)
def test_operator_and_its_parts(kind, loss, part):
    case = typical(kind, loss)
    of_library, of_autodiff = PARTS[part]
    H, dense = of_library(case.hessian_operator), of_autodiff(case)
    columns = np.random.default_rng(1).normal(size=(len(dense), 3))
    size = np.abs(dense).max()
    assert H.shape == dense.shape
    np.testing.assert_allclose(H.dense(), dense, rtol=0, atol=1e-14 * size)
    np.testing.assert_allclose(H @ columns, dense @ columns, rtol=0, atol=1e-13 * size)
    np.testing.assert_allclose(H @ columns[:, 0], dense @ columns[:, 0], rtol=0, atol=1e-13 * size)
    np.testing.assert_allclose(H.trace(), np.trace(dense), rtol=0, atol=1e-13 * size)
    np.testing.assert_allclose(H.squared_norm(), (dense**2).sum(), rtol=1e-13)
    assert_spectrum(H.spectrum(), dense, 1e-12 * np.linalg.norm(dense, 2))


@pytest.mark.parametrize("part", ["ggn", "functional"])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_parts_at_any_point(kind, part, data):
    case = data.draw(cases(kind, exponents=st.integers(-2, 2)))
    of_library, of_autodiff = PARTS[part]
    tolerance = case.tolerance + 1e-12 * np.linalg.norm(case.ggn, 2)
    assert_spectrum(of_library(case.hessian_operator).spectrum(), of_autodiff(case), tolerance)


@pytest.mark.parametrize(("kind", "loss"), EACH)
def test_predictions_loss_and_gradient(kind, loss):
    case = typical(kind, loss)
    predictions = case.net(case.x)
    np.testing.assert_allclose(predictions, case.predictions.reshape(predictions.shape), rtol=1e-14)
    np.testing.assert_allclose(case.net.loss(*case.data), case.value, rtol=1e-14)
    size = np.abs(case.gradient).max()
    np.testing.assert_allclose(
        case.net.gradient(*case.data), case.gradient, rtol=0, atol=1e-14 * size
    )


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_gradient_at_any_point(kind, data):
    case = data.draw(cases(kind, exponents=st.integers(-2, 2)))
    reach = case.floor * np.linalg.norm(case.theta) + 1e-12 * np.linalg.norm(case.gradient)
    np.testing.assert_allclose(case.net.gradient(*case.data), case.gradient, rtol=0, atol=reach)


@pytest.mark.parametrize("kind", KINDS)
def test_parameter_vector_is_pytorchs(kind):
    case = typical(kind)
    np.testing.assert_array_equal(case.net.parameters(), case.theta)
    moved = case.net.with_parameters(case.theta.numpy() + 1)
    np.testing.assert_array_equal(moved.parameters(), case.theta + 1)


DECORRELATED = np.kron(np.eye(2), [[1.0], [-2.0]])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("x", "method"), [(DECORRELATED, "closed form"), (None, "coupled block")])
@pytest.mark.parametrize("m", [1, 3])
def test_decoupled_inputs_with_and_without_correlation(loss, x, method, m):
    case = typical("DecoupledInputs", loss, m=m, x=x)
    spectrum = case.hessian_operator.spectrum()
    assert spectrum.method == method
    assert_spectrum(spectrum, case.hessian, case.tolerance)


# Scales. Powers of two move through a Hessian of the mean-squared error exactly, so that a network
# at 1e±150 must have the spectrum it has at 1, scaled, to the last digits.


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_scales_from_1e_minus_150_to_1e150(kind, data):
    case = data.draw(cases(kind))
    a = data.draw(st.integers(-498, 498))
    # The affine network's constant input stays 1.
    b = 0 if kind == "ScalarAffine" else data.draw(st.integers(-498, 498))
    assume(abs(a + b) <= 460)
    assume(abs(2 * a + b) <= 980)
    scaled = Case(
        kind,
        {name: np.ldexp(weight, a) for name, weight in case.weights.items()},
        np.ldexp(case.x, b),
        np.ldexp(case.y, 2 * a + b),
    )
    H = scaled.hessian_operator
    values = H.spectrum().eigenvalues
    np.testing.assert_allclose(
        np.ldexp(values, -2 * (a + b)),
        case.hessian_operator.spectrum().eigenvalues,
        rtol=1e-14,
        atol=1e-15 * case.norm,
    )
    assert H.spectrum().verify(H).residual < 1e-14


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_all_zero(kind):
    case = typical(kind)
    still = Case(kind, {k: 0 * v for k, v in case.weights.items()}, case.x, case.y)
    assert_spectrum(still.hessian_operator.spectrum(), still.hessian, still.tolerance)
    assert still.hessian_operator.ggn.spectrum().rank() == 0


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "ScalarAffine"])
def test_data_that_are_all_zero_leave_everything_flat(kind):
    case = typical(kind)
    spectrum = case.net.hessian(0 * case.x, case.y).spectrum()
    assert spectrum.inertia() == (0, 0, len(spectrum))
    assert np.isnan(spectrum.condition_number)
    assert spectrum.logabsdet == 0


def test_own_loss_may_inherit_from_a_named_one():
    class Doubled(hs.losses.Squared):
        def value(self, prediction, target):
            return (prediction - target) ** 2

        def first(self, prediction, target):
            return 2 * (prediction - target)

        def second(self, prediction, target):
            return 2 + 0 * (prediction - target)

    for kind in KINDS:
        case = typical(kind)
        doubled = case.net.hessian(case.x, case.y, Doubled())
        np.testing.assert_allclose(doubled.dense(), 2 * case.hessian, rtol=1e-12, atol=1e-13)
    rng = np.random.default_rng(0)
    net = hs.TwoLayerLinear(rng.normal(size=(4, 3)), rng.normal(size=(2, 4)))
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    found, once = net.hessian(x, y, Doubled()).dense(), net.hessian(x, y).dense()
    np.testing.assert_allclose(found, 2 * once, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivative_of_own_loss_may_be_constant(kind):
    """It may have the shape of the targets, of one network as of a batch of them."""

    class Constant(hs.losses.Squared):
        def second(self, prediction, target):
            return np.ones_like(target)

    case = typical(kind)
    weights = {name: np.stack([weight, weight]) for name, weight in case.weights.items()}
    for net, pick in ((case.net, ...), (type(case.net)(**weights), 1)):
        H = net.hessian(case.x, case.y, Constant())
        for operator, expected in ((H, case.hessian), (H.ggn, case.ggn)):
            np.testing.assert_allclose(operator.dense()[pick], expected, rtol=1e-12, atol=1e-13)
            spectrum = operator.spectrum()
            np.testing.assert_allclose(
                spectrum.eigenvalues[pick], np.linalg.eigvalsh(expected)[::-1], atol=1e-12
            )
            assert 0 < spectrum.errors[pick].max() < 1e-10
