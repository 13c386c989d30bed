"""Dense matrices by plain automatic differentiation of a loss as the user writes it."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def jacobian(outputs, tensors):
    """Return the derivative of every number of a tensor, row by row, by reverse mode alone."""
    rows = []
    for output in outputs.reshape(-1):
        if not output.requires_grad:
            rows.append(flat([torch.zeros_like(t) for t in tensors]))
            continue
        slopes = torch.autograd.grad(output, tensors, retain_graph=True, materialize_grads=True)
        rows.append(flat(slopes))
    return torch.stack(rows)


def dense_hessian(value, tensors):
    """Differentiate value() twice, its gradient number by number."""
    tensors = list(tensors)
    with sdpa_kernel(SDPBackend.MATH):
        slopes = torch.autograd.grad(value(), tensors, create_graph=True, materialize_grads=True)
    return jacobian(flat(slopes), tensors).detach()


def dense_ggn(predict, loss_of, tensors):
    """Return Jᵀ H_L J: the prediction's Jacobian and the loss' dense Hessian in the prediction."""
    with sdpa_kernel(SDPBackend.MATH):
        prediction = predict()
    J = jacobian(prediction, list(tensors))
    at = prediction.detach()
    middle = torch.autograd.functional.hessian(loss_of, at).reshape(at.numel(), at.numel())
    return J.T @ middle @ J


def finite_differences(value, tensors, step=1e-4):
    """Return the Hessian from values alone of first derivatives, with an error of step⁴."""
    tensors = list(tensors)

    def gradient():
        return flat(torch.autograd.grad(value(), tensors, materialize_grads=True))

    columns = []
    for tensor in tensors:
        numbers = tensor.data.view(-1)
        for i in range(numbers.numel()):
            here = numbers[i].item()
            slopes = []
            for factor in (-2, -1, 1, 2):
                numbers[i] = here + factor * step
                slopes.append(gradient())
            numbers[i] = here
            far_left, left, right, far_right = slopes
            columns.append((8 * (right - left) - (far_right - far_left)) / (12 * step))
    return torch.stack(columns, dim=1)


def assert_same(found, expected, tolerance=1e-12):
    """Compare matrices relative to their largest entry."""
    found, expected = (np.asarray(torch.as_tensor(a).detach()) for a in (found, expected))
    assert found.shape == expected.shape
    size = max(np.abs(expected).max(), 1e-3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)
