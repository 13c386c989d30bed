r"""The Gauss–Newton part of a two-layer network, through the dual.

The non-zero eigenvalues of :math:`G = T^\top T` are those of the nK × nK matrix
:math:`TT^\top = S^{1/2} JJ^\top S^{1/2}`. With pairs (k, i) of output and sample for rows,

.. math:: (JJ^\top)_{ki,lh} = \langle x_i, x_h\rangle
    \sum_j W_{kj}\varphi'_{ij} W_{lj}\varphi'_{hj} + \delta_{kl}\sum_j \varphi_{ij}\varphi_{hj}
    + \delta_{kl}\,[c \text{ moves}],

so that J, of nK × p numbers, is never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hessence._common.arrays import Numbers
from hessence._common.messages import warn
from hessence.networks.scalar.scalar_relu import KinkWarning
from hessence.networks.two_layer.problem import (
    ULPS,
    UNIT,
    LossAt,
    TwoLayer,
    accumulated,
    stable_norm,
)

MOST_DUAL = 2**14
"""The largest order nK of the dual."""

PROBED = 4096
"""How many pre-activations tell how large the derivatives of an activation are."""

STEEP = 2.0**-4
"""Up to this share, the change of a loss Hessian is in proportion to that of a prediction."""


@dataclass(frozen=True, eq=False)
class GaussNewton:
    """The spectrum of the Gauss–Newton part, and how far rounding may have moved it."""

    at: LossAt  # the loss at the predictions
    weight: Numbers  # (n,): the norms of the loss Hessians
    root: Numbers  # (n, K, K): their symmetric square roots
    eigenvalues: Numbers  # (nK,): those of TTᵀ, descending
    error: float  # bounds the error of the eigenvalues
    factor_error: float  # bounds that of T in the Frobenius norm, apart from what comes from S
    share_error: float  # bounds that of S, relative to S
    root_error: float  # bounds what jumps of S, and the error of its root, do to G, in norm
    trace: float  # bounds the squared Frobenius norm of T
    rank: int  # bounds the rank of G
    gradient_error: Numbers  # (n,): bounds the errors of the loss gradients s_i
    scales: tuple[float, float, float]  # bound φ′, φ″ and φ‴ near the pre-activations


def gauss_newton(problem: TwoLayer) -> GaussNewton:
    """Compute predictions, loss and Gram matrix in one pass over the hidden units."""
    n, outputs = problem.samples, problem.outputs
    order = n * outputs
    if order > MOST_DUAL:
        raise ValueError(
            f"data: samples × outputs must be at most {MOST_DUAL} for brackets, got {order}; use "
            "fewer samples, or hs.spectrum for the ends of the spectrum."
        )
    predictions = np.zeros((outputs, n)) + problem.c[:, None]
    values, slopes = np.zeros((n, n)), np.zeros((order, order))
    steepest, kinks = 0.0, 0
    for units in problem.chunks():
        phi, first = problem.hidden(units, 1)
        kinks += problem.kinks(units, first)
        predictions += problem.outgoing(units, phi)
        values += phi.T @ phi
        steepest = max(steepest, float(np.abs(first).max()))
        weighted = (problem.W[:, units].T[:, :, None] * first[:, None, :]).reshape(-1, order)
        slopes += weighted.T @ weighted
    if kinks:
        warn(
            f"{kinks} pre-activation(s) are at a kink, to rounding, where there is no Hessian; "
            "slopes are taken as in autodiff.",
            KinkWarning,
        )
    predictions = np.ascontiguousarray(predictions.T)
    at = problem.loss(predictions)
    gram = slopes
    gram *= np.tile(problem.inputs @ problem.inputs.T + problem.moves_b, (outputs, outputs))
    norms = np.diagonal(values).copy()
    values += problem.moves_c
    for k in range(outputs):
        gram[k * n : (k + 1) * n, k * n : (k + 1) * n] += values
    weight = stable_norm(at.hessian, (1, 2))
    trace = float(weight @ np.diagonal(gram).reshape(outputs, n).sum(axis=0))
    root, scales = _roots(at.hessian), _scales(problem, steepest)
    eigenvalues = np.maximum(np.linalg.eigvalsh(congruent(root, gram))[::-1], 0.0)
    drift = _prediction_errors(problem, norms, steepest)
    changes = _changes(problem, at, predictions, drift)
    jumps = changes.jumps
    undecided = float(jumps @ np.diagonal(gram).reshape(outputs, n).sum(axis=0))
    factor_error = _factor_error(problem, weight + jumps, trace + undecided, norms, scales)
    # Of the loss Hessian, in proportion to it; of its root; of sums and eigensolver.
    share = changes.share + ULPS * UNIT
    root_error = (ULPS + 8 * outputs) * UNIT * trace if outputs > 1 else 0.0
    if undecided:
        root_error += (float(np.sqrt(undecided)) + factor_error) ** 2
    terms = problem.chunk + problem.width // problem.chunk + ULPS
    return GaussNewton(
        at=at,
        weight=weight,
        root=root,
        eigenvalues=eigenvalues,
        error=(
            2 * float(np.sqrt(trace)) * factor_error
            + factor_error**2
            + share * trace
            + root_error
            + accumulated(terms + 4 * order) * trace
        ),
        factor_error=factor_error,
        share_error=share,
        root_error=root_error,
        trace=trace,
        rank=_rank(at, jumps, problem.size),
        gradient_error=changes.gradient + at.noise,
        scales=scales,
    )


def congruent(root: Numbers, matrix: Numbers) -> Numbers:
    """Return S^½ M S^½ for a matrix whose rows and columns are pairs (output, sample)."""
    samples, outputs = root.shape[:2]
    if outputs == 1:
        scale = root[:, 0, 0]
        return scale[:, None] * matrix * scale
    for _ in range(2):
        rows = matrix.reshape(outputs, samples, -1)
        matrix = np.einsum("ikl,lih->kih", root, rows, optimize=True)
        matrix = matrix.reshape(samples * outputs, -1).T
    return matrix


def _roots(hessian: Numbers) -> Numbers:
    """Return the square roots of the loss Hessians, and refuse a loss that is not convex."""
    if hessian.shape[-1] == 1:
        values, vectors = hessian[..., 0], np.ones_like(hessian)
    else:
        values, vectors = np.linalg.eigh(hessian)
    lowest, largest = float(values.min()), float(np.abs(values).max())
    # What is more negative than rounding makes it is no rounding, and bounds would not hold.
    if lowest < -(ULPS + 8 * hessian.shape[-1]) * UNIT * largest:
        raise ValueError(
            "loss must be convex in the predictions for brackets, but its second derivative at "
            f"them has the eigenvalue {lowest:.3g}; hs.spectrum takes any loss."
        )
    clipped = np.sqrt(np.maximum(values, 0.0))
    return (vectors * clipped[:, None, :]) @ np.swapaxes(vectors, 1, 2)


def _scales(problem: TwoLayer, steepest: float) -> tuple[float, float, float]:
    """Return bounds of φ′, φ″ and φ‴ between zero and the pre-activations.

    Of the second and third derivative they are twice the largest of some thousand values.
    """
    if problem.activation.piecewise_linear:
        return steepest, 0.0, 0.0
    rng = np.random.default_rng(0)
    units = rng.integers(problem.width, size=PROBED)
    samples = rng.integers(problem.samples, size=PROBED)
    z = np.einsum("pd,pd->p", problem.V[units], problem.inputs[samples]) + problem.b[units]
    points = np.concatenate([share * z for share in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)])
    _, *derivatives = problem.activation.derivatives(points[None], 3)
    first, second, third = (2 * float(np.abs(d).max()) for d in derivatives)
    return max(first, steepest), second, third


def reach(problem: TwoLayer) -> tuple[Numbers, Numbers]:
    """Return numbers (m,) and (n,) whose product bounds a pre-activation's terms.

    The constant input of the biases is taken in the unit of the others, in which the bound is
    closest.
    """
    squares = (problem.inputs**2).sum(axis=1)
    unit = float(squares.max()) or 1.0
    constant = unit if problem.b.any() else 0.0
    of_units = np.sqrt((problem.V**2).sum(axis=1) + problem.b**2 / unit)
    return of_units, np.sqrt(squares + constant)


def _prediction_errors(problem: TwoLayer, norms: Numbers, steepest: float) -> Numbers:
    """Return how far the predictions of each sample may be off, as vectors, (n,)."""
    entry = ULPS * UNIT + accumulated(problem.inputs.shape[1] + 2)
    terms = accumulated(problem.outgoing_terms + ULPS) + ULPS * UNIT
    weights = np.abs(problem.W)
    # What pre-activations are made of, weighed as their units are in the outputs, (K, n).
    through = (weights @ np.abs(problem.V)) @ np.abs(problem.inputs.T)
    through += (weights @ np.abs(problem.b))[:, None]
    moved = 1.01 * steepest * entry * np.linalg.norm(through, axis=0)
    summed = np.linalg.norm(problem.W) * np.sqrt(norms) + np.linalg.norm(problem.c)
    return np.asarray((1 + terms) * moved + terms * summed)


def _factor_error(
    problem: TwoLayer,
    weight: Numbers,
    trace: float,
    norms: Numbers,
    scales: tuple[float, float, float],
) -> float:
    """Bound the rounding of T in the Frobenius norm: of pre-activations, φ and φ′."""
    of_units, of_samples = reach(problem)
    steep, curved, _ = scales
    entry = accumulated(problem.inputs.shape[1] + 2)
    lengths = (problem.inputs**2).sum(axis=1) + problem.moves_b
    outgoing = (problem.W**2).sum(axis=0)
    jitter = 0.0 if problem.activation.piecewise_linear else ULPS * UNIT * steep
    # Of φ′, then of φ: by rounding of their own and by that of the pre-activation.
    squares = 2 * weight @ lengths * jitter**2 * outgoing.sum()
    squares += (
        2 * weight @ (lengths * of_samples**2) * (curved * entry) ** 2 * (outgoing @ of_units**2)
    )
    own = steep * (ULPS * UNIT + entry)
    squares += 2 * problem.outputs * own**2 * (weight @ of_samples**2) * (of_units @ of_units)
    squares += 2 * problem.outputs * (ULPS * UNIT) ** 2 * (weight @ norms)
    squares += accumulated(problem.inputs.shape[1] + ULPS) ** 2 * trace
    return float(np.sqrt(squares))


@dataclass(frozen=True, eq=False)
class _Changes:
    """How much the derivatives of a loss change where its predictions are off."""

    share: float  # of the second derivatives, where these are in proportion
    jumps: Numbers  # (n,): of other second derivatives, in norm
    gradient: Numbers  # (n,): of the gradient, in norm


def _changes(problem: TwoLayer, at: LossAt, predictions: Numbers, drift: Numbers) -> _Changes:
    """Bound the changes of a loss whose predictions are off by `drift`.

    The second derivatives of a smooth loss change in proportion, unless predictions are off by so
    much that this tells nothing. Others may jump, as those of the Huber loss do at its threshold.
    Predictions are moved by their errors either way, and to where a loss may be bent most: towards
    their targets, and towards zero.
    """
    steep, weight = at.steepness * drift, stable_norm(at.hessian, (1, 2))
    wild = steep > STEEP
    share = float(np.expm1(steep[~wild].max(initial=0.0)))
    far = drift[:, None] + ULPS * UNIT * (np.abs(predictions) + np.abs(at.targets))
    moves = [far, -far, *(np.clip(a - predictions, -far, far) for a in (at.targets, 0.0))]
    if problem.outputs > 1:
        turns = np.random.default_rng(0).choice([-1.0, 1.0], size=far.shape)
        moves += [turns * far, -turns * far]
    moved = [problem.loss(predictions + move) for move in moves]
    change = np.max([stable_norm(m.hessian - at.hessian, (1, 2)) for m in moved], axis=0)
    if at.shifts and wild.any():
        # Nowhere does the Hessian of softmax have an eigenvalue above half of its weight.
        flat = problem.loss(0 * predictions).hessian
        change[wild] = flat.shape[-1] * stable_norm(flat[wild], (1, 2))
    reach = np.linalg.norm(far, axis=1)
    smooth = np.expm1(np.minimum(2 * at.steepness * reach, 1.0)) + 8 * ULPS * UNIT
    jumps = np.where(wild | (change > smooth * weight), change, 0.0)
    bent = (1 + share) * weight + jumps
    turned = np.max([stable_norm(m.gradient - at.gradient, 1) for m in moved], axis=0)
    turned = np.where(turned > 2 * (bent * reach + at.noise), turned, 0.0)
    return _Changes(share, jumps, np.maximum(bent * drift, turned))


def _rank(at: LossAt, jumps: Numbers, size: int) -> int:
    """Bound the rank of the Gauss–Newton part by those of the loss Hessians, exactly."""
    rows = (np.any(at.hessian != 0, axis=2) | (jumps > 0)[:, None]).sum(axis=1)
    if at.shifts:
        rows = np.minimum(rows, at.hessian.shape[1] - 1)
    return int(min(rows.sum(), size))
