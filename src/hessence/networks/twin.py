r"""The narrow twin: a wide product of matrices, and all that its width matters for.

Let parameters :math:`A` (K × m) and :math:`B` (m × D) enter a loss only through :math:`M = AB`, and
let Q be an orthonormal basis of :math:`S = \mathrm{row}(A) + \mathrm{col}(B)`, of dimension r. The
second variation is :math:`\nabla^2\ell[dM, dM] + 2\langle G, dA\,dB\rangle` with
:math:`dM = dA\,B + A\,dB` and :math:`G = \partial\ell/\partial M`. Only the part of dA and dB
inside S reaches dM, and inside and outside do not mix in dA dB. So the Hessian is that of the
*narrow twin*, the same product with inner width r and factors :math:`(AQ, Q^\top B)`, beside a bulk
:math:`\pm\sigma_i(G)`, each m − r times, and zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from hessence._common.arrays import Array, epsilon, floating, require_shape


@dataclass(frozen=True, eq=False, repr=False)
class NarrowTwin:
    """A product of two matrices with the inner width it needs.

    Attributes
    ----------
    W1 : array (r, D)
        Qᵀ W1.
    W2 : array (K, r)
        W2 Q, so that the product is the same.
    basis : array (m, r)
        Q, orthonormal columns that span the rows of W2 and the columns of W1.
    """

    W1: Array
    W2: Array
    basis: Array

    @property
    def width(self) -> int:
        """The inner width r of the twin."""
        return int(self.basis.shape[-1])

    def __repr__(self) -> str:
        return f"NarrowTwin(width={self.width} of {int(self.basis.shape[-2])})"


def narrow_twin(W1: Array, W2: Array, *, tol: float | None = None) -> NarrowTwin:
    """Return the narrow twin of the product W2 W1.

    Parameters
    ----------
    W1 : array (m, D)
        The first factor to act.
    W2 : array (K, m)
        The second.
    tol : float, optional
        Directions of the hidden space whose singular value in the stack of both matrices is at most
        `tol` times the largest are dropped. The default is (K + D) · ε, ε the spacing of the
        floating-point type. Dropping changes the product by rounding only; keeping a direction more
        than needed changes nothing at all.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> W1, W2 = rng.normal(size=(1000, 3)), rng.normal(size=(2, 1000))
    >>> twin = hs.narrow_twin(W1, W2)
    >>> twin.width, bool(np.allclose(twin.W2 @ twin.W1, W2 @ W1))
    (5, True)
    """
    xp, W1, W2 = floating(W1=W1, W2=W2)
    require_shape("W1", W1, ("m", "D"), batch=False)
    require_shape("W2", W2, ("K", int(W1.shape[0])), batch=False)
    stack = xp.concat([W1, xp.matrix_transpose(W2)], axis=-1)
    left, singular, _ = xp.linalg.svd(stack, full_matrices=False)
    if tol is None:
        # The width m does not count, unlike in `numerical_rank`: it may be huge, and a direction
        # too many does no harm.
        tol = int(stack.shape[-1]) * epsilon(stack)
    elif not tol >= 0:
        raise ValueError(f"tol must not be negative, got {tol}.")
    keep = max(1, int(xp.sum(xp.astype(singular > tol * singular[0], xp.int64))))
    basis = left[:, :keep]
    return NarrowTwin(xp.matmul(xp.matrix_transpose(basis), W1), xp.matmul(W2, basis), basis)
