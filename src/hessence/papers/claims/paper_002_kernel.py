"""Claims of paper 002, section 2: linear networks of any depth and their tangent kernel.

The Gauss–Newton matrix is the Hessian at zero loss, so the dense Hessian of a network that has its
own predictions for targets stands for both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hessence.papers.claims.linear_networks import (
    Linear,
    jacobian_of,
    nonzero,
    random_weights,
    solved_draws,
    tangent_kernel,
    white,
)
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import NetworkBatch, batched


def _near_zero() -> Verdict:
    rng = np.random.default_rng(201)
    gaps, inside = [], []
    for net, _ in solved_draws(201):
        for share in (0.0, 1.0):
            other = replace(net, Y=net.Y + share * rng.normal(size=net.Y.shape))
            hessian, jacobian = other.hessian(), jacobian_of(other)
            ggn = jacobian.T @ jacobian / net.X.shape[1]
            gaps.append(float(np.max(np.abs(hessian - ggn)) / np.max(np.abs(hessian))))
            inside.append(share == 0)
    return judge(gaps, "entries of dense Hessians less JᵀJ/n", "the loss is zero", inside)


def _stacking() -> Verdict:
    gaps, inside = [], []
    for net, _ in solved_draws(202):
        jacobian, start = jacobian_of(net), 0
        for layer, weight in enumerate(net.weights):
            own = jacobian[:, start : start + weight.size]
            start += weight.size
            printed = np.kron((net.below(layer) @ net.X).T, net.above(layer))
            by_columns = own.reshape(len(own), *weight.shape).swapaxes(1, 2).reshape(own.shape)
            for found, is_inside in ((by_columns, True), (own, False)):
                gaps.append(float(np.max(np.abs(printed - found))))
                inside.append(is_inside)
    return judge(
        gaps, "derivatives by differences of outputs, samples first",
        "matrices are stacked by columns", inside,
    )  # fmt: skip


def _kernel_sum() -> Verdict:
    gaps = []
    for net, _ in solved_draws(203):
        n = net.X.shape[1]
        printed = sum(
            np.kron(low.T @ low / n, high @ high.T)
            for low, high in (
                (net.below(layer) @ net.X, net.above(layer)) for layer in range(len(net.weights))
            )
        )
        kernel = tangent_kernel(net)
        gaps.append(float(np.max(np.abs(printed - kernel)) / np.max(np.abs(kernel))))
        shared = nonzero(net.hessian())
        gaps.append(float(np.max(np.abs(nonzero(kernel) - shared)) / shared[-1]))
    return judge(gaps, "J Jᵀ/n by differences, and eigenvalues that it shares with dense Hessians")


def _bound() -> Verdict:
    gaps = []
    for net, var in solved_draws(51):
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        terms = [
            np.linalg.norm(net.below(layer), 2) ** 2 * np.linalg.norm(net.above(layer), 2) ** 2
            for layer in range(len(net.weights))
        ]
        gaps.append(top / (var * float(sum(terms))) - 1)
    return judge(gaps, f"λ_max / bound between {1 + min(gaps):.3f} and {1 + max(gaps):.3f}")


def _squares(net: Linear) -> float:
    """Return Σ ‖P_ℓ‖_F²‖S_ℓ‖_F²."""
    terms = [
        np.sum(net.below(layer) ** 2) * np.sum(net.above(layer) ** 2)
        for layer in range(len(net.weights))
    ]
    return float(sum(terms))


def _trace() -> Verdict:
    gaps = []
    for net, var in solved_draws(52):
        trace = float(np.trace(net.hessian()))
        gaps.append(abs(var * _squares(net) / trace - 1))
    return judge(gaps, "against the trace of the dense Hessian, depths 2 to 4")


def _high_loss() -> Verdict:
    rng = np.random.default_rng(204)
    gaps = []
    for net, var in solved_draws(204):
        far = replace(net, Y=net.Y + 10 * rng.normal(size=net.Y.shape))
        gaps.append(abs(var * _squares(net) / float(np.trace(far.hessian())) - 1))
    return judge(gaps, "traces of dense Hessians far from any solution")


def _flattening() -> Verdict:
    rng = np.random.default_rng(210)
    gaps, inside = [], []
    for i in range(12):
        weights = random_weights(rng, (3, 6, 3))
        X = white(rng, 3, 9)
        Y = (0.2 if i % 2 else 2.0) * weights[1] @ weights[0] @ X + 0.1 * rng.normal(size=(3, 9))
        batch = NetworkBatch(batched([weights]), X, Y)
        spectra = [
            np.linalg.eigvalsh(each.hessians()[0]) for each in (batch, batch.descend(0.02, 5))
        ]
        before, after = (np.array([values.sum(), values[-1]]) for values in spectra)
        outputs = weights[1] @ weights[0] @ X
        gaps.append(float(np.max(after / before - 1)))
        inside.append(float(np.sum(outputs * (outputs - Y))) > 0)
    return judge(
        gaps, "trace and λ_max of Hessians after five steps of descent over those before, less 1",
        "the outputs shrink towards their targets: E⟨f, f − y⟩ > 0", inside,
    )  # fmt: skip


def _whitening() -> Verdict:
    rng = np.random.default_rng(212)
    gaps, inside = [], []
    for size, samples in ((2, 5), (3, 7), (4, 9)):
        raw = rng.normal(size=(size, samples)) * rng.random((size, 1))
        for transposed in (True, False):
            basis = np.linalg.qr(raw.T)[0].T if transposed else np.linalg.qr(raw)[0]
            X = np.sqrt(samples) * 1.5 * basis
            kept = X.shape == raw.shape
            away = np.max(np.abs(X @ X.T / samples - 1.5**2 * np.eye(size)))
            gaps.append(float(away) if kept else float("inf"))
            inside.append(transposed)
    return judge(
        gaps, "XXᵀ/n − σ_x²I; the first factor of X itself has d0 columns instead of n",
        "it is Xᵀ that is decomposed", inside,
    )  # fmt: skip


CLAIMS = (
    Claim(
        "002-eq3", "002 eq 3 and assumption 1",
        "the Hessian is its Gauss–Newton part JᵀJ/n",
        _near_zero,
    ),
    Claim(
        "002-eq4", "002 eq 1 and 4",
        "the derivative in a layer is (P_ℓX)ᵀ ⊗ S_ℓ",
        _stacking,
    ),
    Claim(
        "002-eq5", "002 eq 5",
        "J Jᵀ/n is Σ XᵀP_ℓᵀP_ℓX/n ⊗ S_ℓS_ℓᵀ, and shares its non-zero eigenvalues with JᵀJ/n",
        _kernel_sum,
    ),
    Claim(
        "002-whitening", "002 §2.1 and App C",
        "√n σ_x times the first factor of a QR decomposition is white data",
        _whitening,
    ),
    Claim("002-eq6", "002 eq 6", "λ_max is at most σ_x² Σ ‖P_ℓ‖²‖S_ℓ‖²", _bound),
    Claim("002-eq7", "002 eq 7", "the trace is σ_x² Σ ‖P_ℓ‖_F²‖S_ℓ‖_F²", _trace),
    Claim(
        "002-high-loss", "002 §2.2",
        "the trace is as good far from a solution, where the loss is high",
        _high_loss,
    ),
    Claim(
        "002-flattening", "002 §3",
        "early in training sharpness falls, since the norm of the weights does",
        _flattening, measured=True,
        differs="It falls where outputs shrink towards their targets; networks that start with "
        "small outputs have to grow.",
    ),
)  # fmt: skip
