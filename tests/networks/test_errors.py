"""Error bounds hold: every eigenvalue, by every route, against extended precision and 60 digits."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hessence as hs
from tests import bounded
from tests.oracle import exact_eigenvalues
from tests.strategies import cases

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


@pytest.mark.parametrize("kind", ["ScalarLinear", "ScalarReLU", "DecoupledInputs"])
@given(data=st.data())
def test_closed_forms_keep_their_relative_promise(kind, data):
    case = data.draw(cases(kind, exponents=st.sampled_from([-150, -9, 0, 0, 9, 150])))
    if kind == "ScalarReLU" and not np.all(case.weights["v"]):
        return
    if kind == "DecoupledInputs" and max(map(np.size, case.weights.values())) > 4:
        return
    with np.errstate(all="ignore"):
        spectrum = case.hessian_operator.spectrum()
    if not np.isfinite(spectrum.errors).all() or case.norm < 1e-290:
        return
    for value, error, truth in zip(
        spectrum.eigenvalues, spectrum.errors, exact_eigenvalues(case.exact_hessian), strict=True
    ):
        assert abs(mpmath.mpf(float(value)) - truth) <= float(error) + 1e-290 + case.norm * 1e-50


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
            np.testing.assert_allclose(batch.errors[i], make(net[i]).spectrum().errors, rtol=1e-6)
