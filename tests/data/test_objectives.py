"""Losses as functions of coefficients: each derivative against autodiff of the one before."""

import pytest
import torch

import hessence as hs
from hessence.data.objectives import scalar_objective, vector_objective
from tests.oracle import LOSSES, OWN


def moments(shape_x, shape_y, loss, keep=True):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape_x, generator=generator, dtype=torch.float64)
    y = torch.randn(*shape_y, generator=generator, dtype=torch.float64)
    y = torch.sign(y) if loss == "logistic" else y
    return hs.Moments(x, y) if keep else hs.Moments.from_batches([(x, y)])


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("loss", "keep"), [*((loss, True) for loss in LOSSES), ("mse", False)])
def test_of_one_input(loss, outputs, keep):
    data = moments((6,), (6, outputs), loss, keep)
    objective = scalar_objective(data, OWN.get(loss, loss), n=9)
    g = torch.linspace(-0.7, 0.9, outputs, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(objective.value(g).sum(), g)
    (curvature,) = torch.autograd.grad(objective.gradient(g).sum(), g)
    torch.testing.assert_close(objective.gradient(g), slope, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(objective.hessian(g), curvature, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_of_several_inputs(loss):
    objective = vector_objective(moments((6, 3), (6,), loss), OWN.get(loss, loss))
    beta = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(objective.value(beta), beta)
    curvature = torch.autograd.functional.jacobian(objective.gradient, beta)
    torch.testing.assert_close(objective.gradient(beta), slope, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(objective.hessian(beta), curvature, rtol=1e-13, atol=1e-14)
