"""Whether what is compared is right: speed counts among equals only."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

import hessence as hs
from benchmarks.models import digits_classifier

SEEDS = 50
"""How many random vectors the distance of densities is averaged over."""


class Diagonal:
    """A diagonal matrix."""

    def __init__(self, entries: torch.Tensor) -> None:
        self.entries, self.shape = entries, (len(entries), len(entries))
        self.dtype, self.device = entries.dtype, entries.device

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        return self.entries * other if other.ndim == 1 else self.entries[:, None] * other


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
    """Tell how far densities of one probe are from the true one, for a network of width 24.

    The distance is the area between the cumulated weights of the quadrature and the cumulated
    eigenvalues, in units of the spectrum's extent. Both are taken before smoothing, whose width
    would make up most of any distance after it. Random vectors are uniform on the sphere, so that
    the eigenvalues on a diagonal are as good as the matrix.
    """
    from curvlinops.papyan2020traces.spectrum import fast_lanczos

    model, data = digits_classifier(trained, width=24)
    matrix = hs.hessian(model, data, nn.CrossEntropyLoss()).dense()
    eigenvalues = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    truth, diagonal = eigenvalues.numpy(), Diagonal(eigenvalues)
    ours, theirs = [], []
    for seed in range(SEEDS):
        density = hs.density(diagonal, probes=1, steps=steps, rng=seed)
        ours.append(_distance(density.nodes[0], density.weights[0], truth))
        torch.manual_seed(seed)
        nodes, vectors = (t.numpy() for t in fast_lanczos(diagonal, steps))
        theirs.append(_distance(nodes, vectors[0] ** 2, truth))
    error = np.std([ours, theirs], axis=1, ddof=1).max() / SEEDS**0.5
    return f"{np.mean(ours):.5f} beside {np.mean(theirs):.5f} off (± {error:.5f})"


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


def _distance(nodes: Any, weights: Any, truth: Any) -> float:
    """Return the area between two cumulated distributions."""
    points = np.concatenate([nodes, truth])
    steps = np.concatenate([weights, np.full(len(truth), -1 / len(truth))])
    order = np.argsort(points)
    gaps = np.abs(np.cumsum(steps[order])[:-1]) * np.diff(points[order])
    return float(gaps.sum() / (truth[-1] - truth[0]))
