r"""What the data alone say about the spectrum at a solution.

A balanced network that computes the least-squares solution :math:`M = C\Sigma^+` with L layers has
:math:`P_\ell^\top P_\ell = (M^\top M)^{(\ell-1)/L}` and
:math:`S_\ell S_\ell^\top = (M M^\top)^{(L-\ell)/L}`: its Gauss–Newton spectrum, which is the whole
spectrum at zero loss, does not depend on the network.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, floating, identity, numerical_rank, to_numpy
from hessence.data.matrix_objectives import Separable
from hessence.data.moments import Moments, as_moments
from hessence.networks.linear._gauss_newton import gauss_newton
from hessence.networks.linear.hessian import LinearHessian
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
    _require_no_classes(y)
    data = as_moments(x, y, ("x", x.sum_xx if isinstance(x, Moments) else floating(x=x)[1]))
    xp = api.array_namespace(data.xx)
    solution = xp.matmul(data.yx, xp.linalg.pinv(data.xx))
    left, singular, right = xp.linalg.svd(solution, full_matrices=False)
    rank = max(1, numerical_rank(singular, solution.shape))
    # Of all balanced networks that compute it, the one whose hidden singular vectors are the axes.
    roots = singular[:rank] ** (1 / layers)
    chain = [
        roots[:, None] * right[:rank, :],
        *[roots * identity(rank, roots)] * (layers - 2),
        left[:, :rank] * roots,
    ]
    H = LinearHessian(
        tuple(chain) if layers > 1 else (solution,), 0 * solution, Separable(data.xx), part="ggn"
    )
    found = gauss_newton(H)
    families = [
        replace(family, isometry=_no_vectors)
        for family in found.families()
        if family.labels != ("flat",)
    ]
    if not families:
        # The solution is zero and so is its Hessian; say so with one eigenvalue.
        families = [Subspaces(("none",), _no_vectors, values=0 * roots[:1])]
    return Spectrum(families, f"{found.method}, from the data alone")


def _require_no_classes(y: Any) -> None:
    numbers = np.asarray(to_numpy(y)) if hasattr(y, "shape") else np.asarray(y)
    single = numbers.ndim == 1 or numbers.shape[1:] == (1,)
    if y is not None and single and numbers.dtype.kind in "iub":
        raise ValueError(
            "y holds one integer for each sample, which would be fitted as a number: give one-hot "
            "rows for classes, such as np.eye(10)[y], or y as floating-point numbers."
        )


def _no_vectors(_: int) -> Isometry:
    raise ValueError("there are no eigenvectors without a network; build one with balanced_from.")
