"""Whether what is compared is right: speed counts among equals only."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

import hessence as hs
from benchmarks.models import digits_classifier

SEEDS = 4
"""How many random vectors the distance of densities is averaged over."""


def of_products(subject: Any) -> str:
    """Tell how far products in float64 are from finite differences, and from symmetric."""
    double = type(subject)(
        subject.name,
        copy.deepcopy(subject.model).double(),
        copy.deepcopy(subject.explicit).double(),
        subject.data,
        subject.loss,
    )
    generator = torch.Generator().manual_seed(0)
    size = sum(p.numel() for p in double.model.parameters())
    u, v = torch.randn(2, size, dtype=torch.float64, generator=generator)
    truth = _difference(double, v / v.norm())
    found = []
    for H in (double.ours(), double.curvlinops()):
        image_u, image_v = H @ (u / u.norm()), H @ (v / v.norm())
        error = float((image_v - truth).norm() / truth.norm())
        gap = float(u @ image_v / u.norm() - v @ image_u / v.norm())
        found.append((error, abs(gap) / float(image_u.norm() + image_v.norm())))
    (ours, our_gap), (theirs, their_gap) = found
    return f"error {ours:.0e} beside {theirs:.0e}, asymmetry {our_gap:.0e} beside {their_gap:.0e}"


def of_densities(trained: int, steps: int) -> str:
    """Tell how far densities are from the true one, where all eigenvalues can be computed.

    The distance is the area between cumulated densities, in units of the spectrum's extent; both
    are smoothed by curvlinops' width.
    """
    from curvlinops import HessianLinearOperator
    from curvlinops.papyan2020traces.spectrum import lanczos_approximate_spectrum

    model, data = digits_classifier(trained, width=24)
    loss = nn.CrossEntropyLoss()
    H = hs.hessian(model, data, loss)
    C = HessianLinearOperator(model, loss, list(model.parameters()), [data])
    truth = torch.linalg.eigvalsh(H.dense()).numpy()
    ends = float(truth[0]), float(truth[-1])
    ours, theirs = [], []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        grid, values = (t.numpy() for t in lanczos_approximate_spectrum(C, steps, boundaries=ends))
        theirs.append(_distance(grid, values, truth))
        width = (grid[-1] - grid[0]) / (steps - 1) / np.sqrt(8 * np.log(3.0))
        mine = hs.density(H, probes=1, steps=steps, rng=seed, width=width, grid=grid)
        ours.append(_distance(grid, mine.values, truth))
    return f"{np.mean(ours):.4f} beside {np.mean(theirs):.4f} off"


def _difference(subject: Any, direction: torch.Tensor, step: float = 1e-4) -> torch.Tensor:
    """Return the fourth-order central difference of the gradient."""
    start = nn.utils.parameters_to_vector(subject.model.parameters()).detach()

    def gradient(distance: float) -> torch.Tensor:
        moved = start + distance * direction
        nn.utils.vector_to_parameters(moved, subject.model.parameters())
        return torch.cat([part.ravel() for part in subject.gradient()])

    near = gradient(step) - gradient(-step)
    far = gradient(2 * step) - gradient(-2 * step)
    nn.utils.vector_to_parameters(start, subject.model.parameters())
    return (8 * near - far) / (12 * step)


def _distance(grid: Any, values: Any, truth: Any) -> float:
    spacing = grid[1] - grid[0]
    estimate = np.cumsum(values) * spacing
    cumulated = np.searchsorted(truth, grid, side="right") / len(truth)
    return float(np.abs(estimate - cumulated).sum() * spacing / (truth[-1] - truth[0]))
