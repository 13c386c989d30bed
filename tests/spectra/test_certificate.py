"""Certificates: small for the right operator, large for any other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator

import hessence as hs
from hessence.spectra.certificate import MOST_COLUMNS
from hessence.spectra.subspaces import Columns, Subspaces
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
    assert all(word in text for word in ("residual", "orthogonality", "trace", "squared norm"))


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


@pytest.mark.parametrize("loss", ["mse", "logistic"])
@pytest.mark.parametrize("kind", KINDS)
def test_against_the_loss_itself(kind, loss):
    case = typical(kind, loss)
    certificate = case.hessian_operator.spectrum().verify(case.net, case.x, case.y, loss=loss)
    assert certificate.worst < 1e-12 if np.finfo(np.longdouble).eps < 1e-18 else 1e-8
    assert certificate.trace_defect is not None


def test_an_error_that_the_operator_shares_is_found_in_the_loss():
    case = typical("ScalarLinear")
    H = case.hessian_operator
    wrong = replace(H, gradient=H.gradient * (1 + 1e-7), far_gradient=None)
    s = wrong.spectrum()
    assert s.verify(wrong).worst < 1e-14
    assert 1e-9 < s.verify(case.net, case.x, case.y).residual < 1e-6


@pytest.mark.parametrize(
    ("net", "shapes"),
    [
        (lambda r: hs.DeepLinear([r(4, 3), r(3, 4), r(2, 3)]), ((5, 3), (5, 2))),
        (lambda r: hs.TwoLayerReLU(r(4, 3), r(2, 4)), ((5, 3), (5, 2))),
        (lambda r: hs.SelfAttention(1.5, r(3), r(3)), ((2, 4), (2, 4))),
        (lambda r: hs.MatrixAttention(r(3, 2), r(3, 4), r(3, 4)), ((2, 4, 3), (2, 4, 2))),
        (lambda r: hs.TwoLayerLinear(*map(torch.as_tensor, (r(4, 3), r(2, 4)))), ((5, 3), (5, 2))),
    ],
)
def test_the_loss_of_matrices_and_attention(net, shapes, rng):
    def draw(*shape):
        return rng.normal(size=shape)

    net, (x, y) = net(draw), (draw(*shape) for shape in shapes)
    if torch.is_tensor(net.parameters()):
        x, y = torch.as_tensor(x), torch.as_tensor(y)
    assert net.hessian(x, y).spectrum().verify(net, x, y).worst < 1e-11


def test_a_network_comes_with_its_data_and_an_operator_without():
    case = typical("ScalarLinear")
    s = case.hessian_operator.spectrum()
    with pytest.raises(ValueError, match=r"s\.verify\(net, x, y\)"):
        s.verify(case.net)
    with pytest.raises(ValueError, match="not with an operator"):
        s.verify(case.hessian_operator, case.x, case.y)


def test_spaces_that_overlap_are_seen():
    first = np.eye(2)[:, :1]
    twice = [
        Subspaces(("flat",), lambda _: Columns(lambda copies: first * copies), values=np.zeros(1))
    ] * 2
    certificate = hs.Spectrum(twice, "closed form").verify(np.zeros((2, 2)))
    assert (certificate.residual, certificate.orthogonality, certificate.worst) == (0, 1, 1)
