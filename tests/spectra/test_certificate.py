"""Certificates: small for the right operator, large for any other."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator

import hessence as hs
from hessence.spectra.certificate import MOST_COLUMNS
from tests.oracle import KINDS
from tests.strategies import typical


def certified(case):
    H = case.hessian_operator
    return H.spectrum(), H


@pytest.mark.parametrize("kind", KINDS)
def test_small_for_the_right_operator_in_any_form(kind):
    case = typical(kind, m=12)
    s, H = certified(case)
    for operator in (H, H.dense(), case.hessian, aslinearoperator(case.hessian)):
        certificate = s.verify(operator)
        assert certificate.worst < 1e-13
        assert certificate.vectors >= len(s.spaces)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_large_for_a_wrong_operator(kind, size, rng):
    case = typical(kind)
    s, H = certified(case)
    noise = rng.normal(size=H.shape)
    wrong = H.dense() + size * case.norm * (noise + noise.T)
    certificate = s.verify(wrong)
    assert certificate.residual > size / 10
    assert certificate.worst >= certificate.residual


WRONG = {
    "shifted": (lambda H: H + np.eye(len(H)), ("residual", "trace_defect", "norm_defect")),
    "scaled": (lambda H: 2 * H, ("residual", "trace_defect", "norm_defect")),
    "turned": (lambda H: H[::-1, ::-1], ("residual",)),
    "not symmetric": (lambda H: np.triu(H), ("residual", "norm_defect")),
    "not a number": (lambda H: np.nan * H, ("residual", "trace_defect", "norm_defect")),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_defect_sees_what_it_should(name):
    s, H = certified(typical("ScalarLinear"))
    make, seen = WRONG[name]
    certificate = s.verify(make(H.dense()))
    for defect in seen:
        assert not getattr(certificate, defect) < 1e-3
    assert not certificate.worst < 1e-3


def test_one_line():
    s, H = certified(typical("ScalarLinear"))
    text = str(s.verify(H))
    assert "\n" not in text
    assert all(word in text for word in ("residual", "vectors", "trace", "squared norm"))


def test_a_large_operator_without_a_trace_is_checked_by_its_vectors():
    case = typical("ScalarLinear", m=MOST_COLUMNS)
    s, H = certified(case)

    class Products:
        shape = H.shape

        def __matmul__(self, other):
            return H @ other

    certificate = s.verify(Products())
    assert (certificate.trace_defect, certificate.norm_defect) == (None, None)
    assert certificate.worst == certificate.residual < 1e-13
    assert "not checked" in str(certificate)


def test_at_the_ends_of_the_range():
    x, y = np.asarray([1.0, 2.0]), np.asarray([1.0, -1.0])
    for exponent in (490, -490):
        net = hs.ScalarLinear(np.ldexp([1.0, 2.0], exponent), np.ldexp([0.5, 1.0], exponent))
        H = net.hessian(x, np.ldexp(y, 2 * exponent))
        assert H.spectrum().verify(H).worst < 1e-14


def test_zero_hessian_and_torch():
    net = hs.ScalarLinear(torch.zeros(3), torch.zeros(3))
    H = net.hessian(torch.zeros(2), torch.ones(2))
    assert H.spectrum().verify(H).worst == 0


def test_draws_follow_the_seed_and_the_number_of_samples():
    s, H = certified(typical("ScalarLinear", m=50))
    assert s.verify(H, rng=1) == s.verify(H, rng=1)
    assert s.verify(H, samples=3).vectors == 2 + 2 * 3


def test_shapes_and_batches_are_checked():
    s, _ = certified(typical("ScalarLinear"))
    with pytest.raises(ValueError, match="H must have shape"):
        s.verify(np.eye(5))
    batch = hs.ScalarLinear(np.ones((2, 3)), np.ones((2, 3))).hessian([1.0], [2.0])
    with pytest.raises(ValueError, match="one network at a time"):
        batch.spectrum().verify(batch)
