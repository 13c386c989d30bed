"""Error bounds hold: every eigenvalue, by every route, against extended precision and 60 digits."""

import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hessence as hs
from tests import bounded
from tests.oracle import exact_eigenvalues, exact_hessian

PARTS = ("hessian", "ggn", "functional")
SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("kind", bounded.KINDS)
@given(SEEDS)
def test_no_eigenvalue_is_further_off_than_its_error(kind, seed):
    """Random networks in odd units and at degenerate points; a hunt draws twelve of each seed."""
    rng = np.random.default_rng(seed)
    for _ in range(12 if settings().max_examples > 100 else 1):
        _, net, x, y, loss, f = bounded.draw(rng, kind)
        part = str(rng.choice(PARTS))
        worst, spectrum = bounded.excess(net, x, y, loss, f, part)
        assert worst <= 1, (net, net.parameters(), x, y, loss, part, spectrum.method)


def test_errors_hold_where_all_of_an_eigenvalue_is_an_error():
    """The residual is rounding, so that it cannot be told on which side of Huber's kink it is."""
    net = hs.DecoupledInputs([[-38059155.77821783]], [[-38059155.79724741]])
    x, y = np.asarray([[10.0]]), np.asarray([1.4484993392749014e16])
    worst, _ = bounded.excess(
        net, x, y, "huber", lambda t, x: bounded.decoupled_inputs(t, x, (1, 1)), "ggn"
    )
    assert worst <= 1


def test_errors_hold_where_rounding_hides_that_inputs_are_coupled():
    """Huber's second derivative is computed as 0, where it may be 1 and couple all inputs."""
    rng, methods = np.random.default_rng(0), set()
    for _ in range(100):
        D = int(rng.integers(2, 5))
        W, V = rng.normal(size=(2, D, 1)) * rng.choice([2e7, 5e7, 1e8, 2e8], size=(2, 1, 1))
        x = rng.normal(size=(int(rng.integers(1, 3)), D))
        y = x @ (W * V)[:, 0] + rng.integers(-3, 4, size=len(x))
        worst, spectrum = bounded.excess(
            hs.DecoupledInputs(W, V), x, y, "huber",
            lambda t, x, D=D: bounded.decoupled_inputs(t, x, (D, 1)), "ggn",
        )  # fmt: skip
        methods.add(spectrum.method)
        assert worst <= 1
    assert methods == {"closed form", "coupled block"}


@pytest.mark.parametrize("kind", ["ScalarLinear", "ScalarReLU", "DecoupledOutputs"])
@given(SEEDS)
def test_small_eigenvalues_are_as_accurate_as_they_say(kind, seed):
    """Closed forms promise more than extended precision can check."""
    _, net, x, y, _, _ = bounded.draw(np.random.default_rng(seed), kind)
    weights = {name: np.asarray(weight) for name, weight in net._weights.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spectrum = net.hessian(x, y).spectrum()
    truth = exact_eigenvalues(exact_hessian(kind, weights, x, y))
    floor = mpmath.mpf("1e-50") * max(map(abs, truth)) + mpmath.mpf("1e-300")
    for value, error, true in zip(spectrum.eigenvalues, spectrum.errors, truth, strict=True):
        assert abs(mpmath.mpf(float(value)) - true) <= float(error) + floor


def typical(gap):
    rng = np.random.default_rng(5)
    net = hs.TwoLayerLinear(rng.normal(size=(4, 3)), rng.normal(size=(2, 4)))
    x = rng.normal(size=(20, 3))
    return net.hessian(x, net(x) + gap * rng.normal(size=(20, 2)))


def test_bounds_are_not_far_from_what_happens():
    H = typical(1.0)
    for operator in (H, H.ggn, H.functional):
        spectrum = operator.spectrum()
        assert spectrum.errors.max() < 1e-11 * spectrum.norm


def test_a_functional_part_that_is_rounding_has_errors_of_its_size():
    spectrum = typical(0.0).functional.spectrum()
    assert 0 < spectrum.norm < 1e-13
    assert (np.abs(spectrum.eigenvalues) <= spectrum.errors).all()
    assert spectrum.rank() == 0
    assert typical(1e-3).functional.spectrum().rank() == 16


def test_what_is_neglected_is_part_of_the_errors():
    families = typical(1.0).spectrum().families
    plain, known = (hs.Spectrum(families, "twin", defect=d) for d in (0.0, 0.25))
    np.testing.assert_allclose(known.errors, plain.errors + 0.25)


def test_errors_are_those_of_sorted_eigenvalues():
    from hessence.spectra.subspaces import Subspaces

    def family(value, error):
        values = np.asarray([value])
        return Subspaces(
            ("bulk",), lambda _: None, values=values, errors=lambda: 0 * values + error
        )

    # 1.0 ± 0.5 and 0.9 ± 0: the larger eigenvalue lies in [0.9, 1.5], the smaller in [0.5, 0.9].
    spectrum = hs.Spectrum([family(1.0, 0.5), family(0.9, 0.0)], "closed form")
    np.testing.assert_allclose(spectrum.errors, [0.5, 0.4])


def test_errors_scale_and_are_kept_in_files(tmp_path):
    H = typical(1.0)
    own, negative = H.spectrum(), (-2.0 * H).spectrum()
    np.testing.assert_allclose(negative.errors, 2 * own.errors[::-1])
    own.save(tmp_path / "s.json")
    again = hs.load(tmp_path / "s.json")
    assert again == own
    np.testing.assert_array_equal(again.errors, own.errors)


def test_errors_of_a_batch_are_those_of_its_networks():
    rng = np.random.default_rng(0)
    net = hs.ScalarAffine(*rng.normal(size=(3, 2, 4)))
    x, y = rng.normal(size=(2, 7))
    for make in (lambda n: n.hessian(x, y), lambda n: n.hessian(x, y).ggn):
        batch = make(net).spectrum()
        for i in range(2):
            np.testing.assert_allclose(batch.errors[i], make(net[i]).spectrum().errors, rtol=0.01)
