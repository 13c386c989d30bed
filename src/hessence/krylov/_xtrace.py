r"""XTrace: every random vector of a sketch estimates what the images of all others have missed.

With Q the orthonormal range of all images but that of ω and d = n − rank Q, the estimate is

.. math:: \operatorname{tr}(Q^\top H Q) + d\, v^\top H v, \qquad
          v = \frac{(I - QQ^\top)\, \omega}{\|(I - QQ^\top)\, \omega\|},

whose mean is tr H whatever Q is, since Q does not depend on ω (Epperly, Tropp & Webber, SIAM J.
Matrix Anal. Appl. 45, 2024). The estimates :math:`t_i` of k vectors share most of their ranges, so
their errors are correlated, and the standard error of independent samples that the paper suggests
is too small: by 10 to 50 % for the spectra of our tests. Here the correlation is estimated too.

Let :math:`t_{i|j}` be estimate i with vector j left out as well. Given all vectors but i,
:math:`t_i` and :math:`t_{i|j}` are right on average, and :math:`t_{j|i}` does not depend on
:math:`\omega_i`. So the errors of :math:`t_i` and :math:`t_{j|i}` are uncorrelated, those of
:math:`t_{i|j}` and :math:`t_{j|i}` too, and hence

.. math:: \operatorname{Cov}(t_i, t_j) = \operatorname{E}[(t_i - t_{i|j})(t_j - t_{j|i})],

which needs no knowledge of tr H. With s² the sample variance of the estimates, and c the mean of
these products over all pairs, s²/k + c is an unbiased estimate of the variance of their mean.

This is unbiased, but too small just when the value is far off. If H has some k large eigenvalues,
the range of all k vectors holds their eigenvectors, and that of k − 1 vectors misses a direction. A
direction in which all vectors have little weight is missed by all estimates at once, and they do
not show it. But the products HQ do. With :math:`s_i` the direction of Q that is lost without
vector i, M the mean of :math:`s_i s_i^\top`, B = QᵀHQ − a with a the mean eigenvalue outside of Q,
and X = (I − QQᵀ)HQ,

.. math:: 2 \operatorname{tr}(BMBM) + 4 \|XM\|^2 = \frac{2}{k^2} \sum_{ij} \Bigl( (s_i^\top B s_j)^2
          + 2\, (s_i^\top s_j)\, (X s_i)^\top (X s_j) \Bigr)

is the variance of the errors of estimates that miss these directions, as far as products show it:
the variance of a quadratic form of a random vector is twice the sum of the squared entries, and
these are entries of what the estimates have to guess. It is added to the variance. To find X
without keeping vectors, Q is multiplied after rotating it to the eigenvectors of M.

The sketch orthonormalises images of random unit vectors, :math:`H\Omega = Q R`, and keeps only Q.
An image that depends on those before it, up to rounding, adds nothing to Q. After such an image no
more are taken: a random vector has just failed to find anything outside of Q. So an operator of low
rank takes few products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Numbers, epsilon, like
from hessence.krylov._linear_algebra import (
    eigensystem,
    inner_products,
    lengths,
    orthogonalise,
    subtract,
    with_rows,
)
from hessence.krylov._operand import Probes, ScaledProduct

COLUMNS = 16
"""How many vectors to multiply at once."""

NEGLIGIBLE = 8
"""What is left of an image below this many ε of its length is rounding."""

INDEPENDENT = 1e-6
"""A vector whose image the others do not span has leverage 1; up to this much less counts too."""

PARALLEL = 1e-12
"""How small 1 − cos² may get before two directions to leave out count as one."""


@dataclass(frozen=True)
class Sketch:
    """What is known after the products HΩ and HQ."""

    overlaps: Numbers  # QᵀΩ, (r, k)
    images: Numbers  # R = QᵀHΩ, (r, k)
    inside: Numbers  # QᵀHQ, symmetrised, (r, r)
    left_out: Numbers  # the directions s_i, (r, k); zero where other images span image i
    outside: float  # ‖XM‖²
    squared_norm: float  # of H, estimated by n times the mean of ‖Hω‖²


def sketch(product: ScaledProduct, probes: Probes) -> Sketch:
    """Multiply the probes, and then the basis of what comes out."""
    start, count = probes.draw(0), len(probes)
    xp, size = api.array_namespace(start), int(start.shape[0])
    rows = xp.empty((count, size), dtype=start.dtype, device=api.device(start))
    images, known, taken, squares = np.zeros((count, count)), 0, 0, 0.0
    while taken < count and known == taken:
        begin, taken = taken, min(taken + COLUMNS, count)
        columns = product(probes.columns(begin, taken))
        norms = lengths(columns)
        squares += float((norms**2).sum())
        for j in range(begin, taken):
            column = columns[:, j - begin : j - begin + 1]
            along, rest = orthogonalise(rows[:known, :], column)
            images[:known, j], (length,) = along[:, 0], lengths(rest)
            if length > NEGLIGIBLE * epsilon(rest) * norms[j - begin]:
                images[known, j] = length
                rows = with_rows(rows, known, rest.mT / float(length))
                known += 1
    rows, images = rows[:known, :], images[:known, :taken]
    overlaps, inside = np.zeros((known, taken)), np.zeros((known, known))
    for part in parts_of(taken):
        columns = probes.columns(part.start, part.stop)
        overlaps[:, part] = inner_products(rows, columns)
    left_out, outside = _left_out(images), 0.0
    weights, turn = eigensystem(left_out @ left_out.T / taken, start)
    for part in parts_of(known):
        columns = xp.matrix_transpose(like(turn.T[part], rows) @ rows)
        inside[:, part], rest = subtract(rows, product(columns))
        outside += float(np.square(weights[part] * lengths(rest)).sum())
    inside = inside @ turn.T
    inside = (inside + inside.T) / 2
    return Sketch(overlaps, images, inside, left_out, outside, size * squares / taken)


def _left_out(R: Numbers) -> Numbers:
    r"""Return the unit vectors :math:`s_i` orthogonal to all columns of R but the i-th.

    These are the rows of its inverse, normalised: the range without image i is that of
    :math:`Q (I - s_i s_i^\top)`. If other images span image i, there is nothing to leave out.
    """
    rank, count = R.shape
    inverse = np.linalg.inv(R) if rank == count else np.linalg.pinv(R)
    needed = (inverse * R.T).sum(axis=1) > 1 - INDEPENDENT
    norms = np.linalg.norm(inverse, axis=1)
    return np.where(needed, inverse.T / np.where(needed, norms, 1.0), 0.0)


def parts_of(count: int) -> Iterator[slice]:
    """Split range(count) into the parts that are multiplied at once."""
    for begin in range(0, count, COLUMNS):
        yield slice(begin, min(begin + COLUMNS, count))


def xtrace(known: Sketch, size: int) -> tuple[Numbers, float]:
    """Return the estimates (k,) and their covariance c; their mean has variance s²/k + c."""
    R, W, S, inside = known.images, known.overlaps, known.left_out, known.inside
    rank, count = S.shape
    total, HS, HW = float(np.trace(inside)), inside @ S, inside @ W
    ww, whw = (W * W).sum(axis=0), (W * HW).sum(axis=0)
    # As H is symmetric, QᵀHω_i is column i of R, so that HQ need not be kept.
    sr, wr = (S * R).sum(axis=0), (W * R).sum(axis=0)
    cos, ss, sw, shw = S.T @ S, S.T @ HS, S.T @ W, S.T @ HW
    own_ss, own_sw, own_shw = np.diag(ss), np.diag(sw), np.diag(shw)

    # The estimates t_i: with a = Qᵀω − s (s · Qᵀω), it is v ∝ ω − Qa.
    along = wr - own_sw * sr  # a · R_i
    form = wr - 2 * along + whw - 2 * own_sw * own_shw + own_sw**2 * own_ss
    length = 1 - ww + own_sw**2
    needed = (S != 0).any(axis=0)
    estimates = total - own_ss + (size - rank + needed) * form / length
    if rank < count:
        # The other images span image i too; what differs is rounding.
        return estimates, 0.0

    # t_{j|i} in row i and column j; the diagonal has no meaning. An orthonormal basis of what is
    # left out is s = s_i and e = (s_j − cos s_i) / sin; s_i is orthogonal to R_j.
    sin = np.sqrt(np.maximum(1 - cos**2, PARALLEL))
    other = own_ss[:, None]
    ew, ehw, er = (own_sw - cos * sw) / sin, (own_shw - cos * shw) / sin, sr / sin
    ehe = (own_ss - 2 * cos * ss + cos**2 * other) / sin**2
    she = (ss - cos * other) / sin
    along = wr - ew * er
    form = wr - 2 * along + whw - 2 * (sw * shw + ew * ehw)
    form = form + sw**2 * other + 2 * sw * ew * she + ew**2 * ehe
    length = 1 - ww + sw**2 + ew**2
    without_another = total - other - ehe + (size - rank + 2) * form / length
    change = estimates - without_another
    np.fill_diagonal(change, 0.0)
    covariance = float((change * change.T).sum()) / (count * (count - 1))
    return estimates, max(covariance, 0.0)


def missed_variance(known: Sketch, size: int, value: float) -> float:
    """Return 2 tr(BMBM) + 4 ‖XM‖², given the trace."""
    S, inside = known.left_out, known.inside
    rank, count = S.shape
    beyond = (value - float(np.trace(inside))) / (size - rank)
    seen = S.T @ inside @ S - beyond * (S.T @ S)
    return 2 * float(np.square(seen / count).sum()) + 4 * known.outside
