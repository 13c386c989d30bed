r"""What the data alone say about the spectrum at a solution.

A balanced network that computes the least-squares solution :math:`M = C\Sigma^+` with L layers has
:math:`P_\ell^\top P_\ell = (M^\top M)^{(\ell-1)/L}` and
:math:`S_\ell S_\ell^\top = (M M^\top)^{(L-\ell)/L}`: its Gauss–Newton spectrum, which is the whole
spectrum at zero loss, does not depend on the network.
"""

from __future__ import annotations

import operator

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, epsilon, floating, integers, numerical_rank, to_numpy
from hessence.data.matrix_objectives import is_scalar_multiple
from hessence.data.moments import Moments, as_moments
from hessence.networks.linear._gauss_newton import TOLERANCE
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Isometry, Subspaces


def solution_spectrum(x: Array, y: Array, depth: int) -> Spectrum:
    """Predict the Gauss–Newton spectrum of the balanced solution of a deep linear network.

    Parameters
    ----------
    x, y : array (n, d_0), (n, d_L)
        The data; they need not be white. A :class:`~hessence.Moments` may stand for both, with
        ``y=None``.
    depth : int
        The number of layers.

    Returns
    -------
    Spectrum
        The non-zero eigenvalues; how many zeros there are beside them depends on the hidden widths.
        For white data of variance σ² they are σ² Σ_ℓ s_i^{2(L−ℓ)} s_j^{2(ℓ−1)} with
        s = σ_i(M)^{1/L}: ``dominant`` pairs r², and ``mixed`` pairs, with one of the two zero,
        r (d_0 + d_L − 2r). There are no eigenvectors without a network.

    Notes
    -----
    For one-hot labels and white data the squared singular values of Y/√n are the shares of the
    classes, and the sharpness is L σ^{2/L} α^{1−1/L} with α the largest share.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> x = hs.whiten(np.random.default_rng(0).normal(size=(8, 8)))
    >>> y = np.eye(2)[[0, 0, 0, 0, 0, 0, 1, 1]]          # one class has three quarters
    >>> s = hs.solution_spectrum(x, y, depth=3)
    >>> bool(np.isclose(s.sharpness, 3 * 0.75 ** (2 / 3)))
    True
    """
    try:
        layers = operator.index(depth)
    except TypeError:
        raise TypeError(f"depth must be an integer, got {type(depth).__name__}.") from None
    if layers < 1:
        raise ValueError(f"depth must be at least 1, got {layers}.")
    data = as_moments(x, y, ("x", x.sum_xx if isinstance(x, Moments) else floating(x=x)[1]))
    xp = api.array_namespace(data.xx)
    solution = xp.matmul(data.yx, xp.linalg.pinv(data.xx))
    _, singular, right = xp.linalg.svd(solution, full_matrices=True)
    outputs, inputs = (int(s) for s in solution.shape)
    rank = numerical_rank(singular, solution.shape)
    roots = singular[:rank] ** (1 / layers)

    def powers(exponent: int, size: int) -> Array:
        """Return the roots to an even power, padded with zeros; 0⁰ is 1."""
        rest = xp.ones if exponent == 0 else xp.zeros
        tail = rest((size - rank,), dtype=roots.dtype, device=api.device(roots))
        return xp.concat([roots ** (2 * exponent), tail])

    # In the singular bases of M the outputs decouple: one problem of size d_0 for each.
    turned = xp.matmul(right, xp.matmul(data.xx, xp.matrix_transpose(right)))
    weights = sum(
        powers(layers - ell, outputs)[:, None] * powers(ell - 1, inputs)[None, :]
        for ell in range(1, layers + 1)
    )
    half = xp.sqrt(weights)
    values = xp.linalg.eigvalsh(half[:, :, None] * turned * half[:, None, :])
    return _labelled(values, weights, turned, rank)


def _labelled(values: Array, weights: Array, turned: Array, rank: int) -> Spectrum:
    xp = api.array_namespace(values)
    white = is_scalar_multiple(turned, TOLERANCE)
    outputs, inputs = (int(s) for s in values.shape)
    if white:
        values = weights * turned[0, 0]
    flat = to_numpy(values).ravel()
    names = np.full((outputs, inputs), "outlier", dtype=object)
    if white:
        names[:] = np.where(to_numpy(weights) > 0, "mixed", "flat")
        names[:rank, :rank] = "dominant"
    names[to_numpy(values) <= outputs * inputs * epsilon(values) * flat.max()] = "flat"
    if (names == "flat").all():
        # The solution is zero and so is its Hessian; say so with one eigenvalue.
        names[0, 0] = "none"
    families = []
    for label in dict.fromkeys(names[names != "flat"].tolist()):
        own = np.flatnonzero(names.ravel() == label)
        chosen = xp.take(xp.reshape(values, (-1,)), integers(own, values), axis=0)
        members = [""] * len(own)
        families.append(Subspaces((label,), _no_vectors, 1, members, values=chosen[:, None]))
    method = "closed form" if white else "Gauss–Newton matrix, split by output"
    return Spectrum(families, f"{method}, from the data alone")


def _no_vectors(_: int) -> Isometry:
    raise ValueError("there are no eigenvectors without a network; build one with balanced_from.")
