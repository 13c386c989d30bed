"""White data: samples whose second moment is a multiple of the identity."""

from __future__ import annotations

import numpy as np

from hessence._common.arguments import as_positive
from hessence._common.arrays import Array, floating, numerical_rank, require_shape


def whiten(x: Array, scale: float = 1.0, rank: int | None = None) -> Array:
    """Return samples with the same row space whose second moment is E[x xᵀ] = scale² I.

    Parameters
    ----------
    x : array (n, d)
        Samples as rows, of full column rank unless `rank` is given.
    scale : float
        The standard deviation of every whitened coordinate, about zero.
    rank : int, optional
        Keep this many coordinates, those along the directions in which x is largest (its leading
        principal components, without centring). The result is then (n, rank). Images with unused
        pixels, or fewer samples than features, need it.

    Returns
    -------
    array (n, d) or (n, rank)

    Raises
    ------
    ValueError
        If the columns of x span fewer dimensions than are to be kept, to rounding.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> x = hs.whiten(np.random.default_rng(0).normal(size=(100, 3)), scale=2.0)
    >>> (x.T @ x / 100).round(12) + 0.0
    array([[4., 0., 0.],
           [0., 4., 0.],
           [0., 0., 4.]])

    >>> few = np.random.default_rng(0).normal(size=(5, 30))
    >>> x = hs.whiten(few, rank=4)
    >>> x.shape, bool(np.allclose(x.T @ x / 5, np.eye(4)))
    ((5, 4), True)
    """
    xp, x = floating(x=x)
    require_shape("x", x, ("n", "d"), batch=False)
    scale = as_positive("scale", scale)
    n, d = (int(s) for s in x.shape)
    # More samples do not make columns dependent, so that n does not count.
    spanned = numerical_rank(xp.linalg.svdvals(x), (8 * d,))
    if rank is not None:
        if not isinstance(rank, (int, np.integer)) or not 0 < rank <= spanned:
            raise ValueError(
                f"rank must be an integer from 1 to {spanned}, the dimensions that x spans, "
                f"got {rank!r}."
            )
        left, _, _ = xp.linalg.svd(x, full_matrices=False)
        return left[:, :rank] * (scale * n**0.5)
    if spanned < d:
        raise ValueError(
            f"x cannot be whitened: its {d} columns span only {spanned} dimensions "
            f"({n} samples); pass rank={spanned}, or drop or merge dependent columns first."
        )
    q, r = xp.linalg.qr(x)
    return q * xp.sign(xp.linalg.diagonal(r)) * (scale * n**0.5)
