"""White data: samples whose second moment is a multiple of the identity."""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import Array, floating, numerical_rank, require_shape


def whiten(x: Array, scale: float = 1.0) -> Array:
    """Return samples with the same row space whose second moment is E[x xᵀ] = scale² I.

    Parameters
    ----------
    x : array (n, d)
        Samples as rows, of full column rank.
    scale : float
        The standard deviation of every whitened coordinate, about zero.

    Raises
    ------
    ValueError
        If the columns of x are linearly dependent, to rounding: no change of basis whitens them.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> x = hs.whiten(np.random.default_rng(0).normal(size=(100, 3)), scale=2.0)
    >>> (x.T @ x / 100).round(12) + 0.0
    array([[4., 0., 0.],
           [0., 4., 0.],
           [0., 0., 4.]])
    """
    xp, x = floating(x=x)
    require_shape("x", x, ("n", "d"), batch=False)
    if not (isinstance(scale, (int, float, np.number)) and np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive number, got {scale!r}.")
    n, d = (int(s) for s in x.shape)
    # More samples do not make columns dependent, so that n does not count.
    rank = numerical_rank(xp.linalg.svdvals(x), (8 * d,))
    if rank < d:
        raise ValueError(
            f"x cannot be whitened: its {d} columns span only {rank} dimensions "
            f"({n} samples); drop or merge dependent columns first."
        )
    q, r = xp.linalg.qr(x)
    return q * xp.sign(xp.linalg.diagonal(r)) * (scale * n**0.5)
