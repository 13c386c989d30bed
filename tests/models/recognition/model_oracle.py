"""The dense Hessian of a PyTorch model by double backward, and what a right answer is."""

from __future__ import annotations

import torch

from tests.models.oracle import dense_hessian


def hessian_of(model, x, y, loss):
    """Return the Hessian of the loss in the order of ``model.parameters()``."""
    return dense_hessian(lambda: (loss or half_mse)(model(x), y), model.parameters())


def half_mse(prediction, target):
    """Return what no loss stands for: ½ E‖f − y‖², the average over the first dimension."""
    return ((prediction - target) ** 2).sum() / (2 * len(prediction))


def assert_recognised(found, model, x, y, loss, tolerance=1e-10):
    """Compare every eigenvalue, every eigenvector and the certificate with autodiff."""
    H = hessian_of(model, x, y, loss)
    p = len(H)
    scale = float(torch.linalg.matrix_norm(H, 2))
    atol = tolerance * scale + 1e-14
    spectrum = found.spectrum
    assert spectrum.exact
    assert spectrum.eigenvalues.dtype == H.dtype
    truth = torch.linalg.eigvalsh(H).flip(0)
    torch.testing.assert_close(spectrum.eigenvalues, truth, rtol=0, atol=atol)
    vectors = torch.cat([space.vectors() for space in spectrum.spaces], dim=1)
    eye = torch.eye(p, dtype=H.dtype)
    torch.testing.assert_close(vectors.T @ vectors, eye, rtol=0, atol=tolerance)
    torch.testing.assert_close(H @ vectors, vectors * spectrum.eigenvalues, rtol=0, atol=atol)
    if scale > 1e-12:
        assert spectrum.verify(H).worst < tolerance
