"""The linear network of any depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import array_api_compat as api
import numpy as np

from hessence._common.arguments import Seed, generator
from hessence._common.arrays import Array, floating, identity, like, numerical_rank, to_numpy
from hessence.networks.linear._modes import find_modes
from hessence.networks.linear.network import LinearNetwork, as_layers, as_multipliers


class DeepLinear(LinearNetwork):
    r"""f(x) = W_L ⋯ W_1 x, with parameters ordered (W_1, …, W_L), each row by row.

    Products with the Hessian come from the moments of the data alone. The Gauss–Newton part has at
    most d_0 d_L non-zero eigenvalues, in closed form for white data if there are two layers or the
    network is balanced. The full Hessian is solved pair by pair if the network is *aligned* (its
    layers, the data and the gradient share singular vectors), by the narrow twin at L = 2, and else
    on its range if that is small; ``spectrum().method`` tells which. It is always checked. Pairs of
    a balanced network on white data are closed forms at L = 2: with singular values s and those of
    the gradient ω, :math:`2s_i^2 + \omega_i`, :math:`-\omega_i`, and for i < j and both signs the
    eigenvalues of
    :math:`[[s_i^2 \pm \omega_j,\ s_i s_j],\ [s_i s_j,\ s_j^2 \pm \omega_i]]`.

    Parameters
    ----------
    weights : sequence of array (..., d_ℓ, d_{ℓ−1})
        The layers, first to act first.
    multipliers : sequence of float, optional
        One fixed factor for each layer, as other parametrisations have them.
    residual : bool
        Whether the layers are I + W_ℓ, W_ℓ square. Then all that is said of W_ℓ above holds for
        I + W_ℓ, multipliers scale I + W_ℓ, and the Hessian is in W_ℓ.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.DeepLinear.balanced((6, 2, 4), singular_values=(2.0, 1.0), rng=0)
    >>> x = hs.whiten(np.random.default_rng(0).normal(size=(50, 6)))
    >>> s = net.hessian(x, net(x)).ggn.spectrum()
    >>> s.rank(), s.sharpness.round(6).item()
    (16, 8.0)
    """

    def __init__(
        self, weights: Sequence[Array], multipliers: Any = None, residual: bool = False
    ) -> None:
        try:
            layers = list(weights)
        except TypeError:
            raise TypeError(
                f"weights must be a sequence of matrices, got {type(weights).__name__}."
            ) from None
        if not layers:
            raise ValueError("weights is empty: expected at least one layer.")
        self.weights = as_layers({f"weights[{i}]": w for i, w in enumerate(layers)})
        self.multipliers = as_multipliers(multipliers, len(layers))
        self.residual = bool(residual)
        if self.residual and len(set(self.dims)) > 1:
            raise ValueError(
                "weights must be square and of one size for residual layers I + W, "
                f"got widths {self.dims}."
            )

    @cached_property
    def factors(self) -> tuple[Array, ...]:
        """The matrices that act one after the other: W_ℓ, or I + W_ℓ with residual layers."""
        if not self.residual:
            return self.weights
        return tuple(identity(self.dims[0], w) + w for w in self.weights)

    @property
    def constant(self) -> Array | None:
        """The identity with residual layers."""
        return identity(self.dims[0], self.weights[0]) if self.residual else None

    @property
    def learned(self) -> Array:
        """The product of the layers, less the identity with residual layers."""
        return self._learned(self.weights, self.factors) if self.residual else super().learned

    def learned_size(self) -> Array:
        """Return the sum of the absolute values of all terms of what is learned."""
        if not self.residual:
            return super().learned_size()
        return self._learned(*(tuple(map(abs, own)) for own in (self.weights, self.factors)))

    @staticmethod
    def _learned(weights: tuple[Array, ...], factors: tuple[Array, ...]) -> Array:
        """Return (I + W)(I + M) − I, layer by layer, as (I + W) M + W.

        No identity rounds off small M and W, and where I + W is small, large M do no harm.
        """
        xp, M = api.array_namespace(weights[0]), weights[0]
        for w, factor in zip(weights[1:], factors[1:], strict=True):
            M = xp.matmul(factor, M) + w
        return M

    @classmethod
    def balanced(cls, dims: Sequence[int], singular_values: Array, rng: Seed = None) -> Self:
        """Return a random balanced network: W_ℓ W_ℓᵀ = W_{ℓ+1}ᵀ W_{ℓ+1} for all layers.

        Parameters
        ----------
        dims : sequence of int
            The widths (d_0, …, d_L).
        singular_values : sequence of float
            The singular values of *each* layer, at most min(dims) of them; the rest are zero.
        rng : int or numpy.random.Generator, optional
            The source of the singular vectors.

        Examples
        --------
        >>> import hessence as hs
        >>> hs.DeepLinear.balanced((3, 5, 4), singular_values=(2.0, 1.0), rng=0).balance() < 1e-14
        True
        """
        widths = as_widths(dims)
        values = (
            to_numpy(floating(singular_values=singular_values)[1])
            if len(singular_values)
            else np.zeros(0)
        )
        if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
            raise ValueError("singular_values must be a list of numbers that are not negative.")
        if values.size > min(widths):
            raise ValueError(
                f"singular_values must have at most min(dims) = {min(widths)} entries, "
                f"got {values.size}."
            )
        source = generator(rng)
        bases = [random_orthogonal(width, source) for width in widths]
        return cls._from_bases(bases, values)

    @classmethod
    def balanced_from(cls, product: Array, dims: Sequence[int], rng: Seed = None) -> Self:
        """Return a balanced network with a given product (d_L, d_0).

        Each layer gets the L-th roots of the product's singular values; hidden singular vectors are
        random.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> product = np.asarray([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
        >>> net = hs.DeepLinear.balanced_from(product, (3, 4, 2), rng=0)
        >>> bool(np.allclose(net.product, product))
        True
        """
        widths = as_widths(dims)
        _, matrix = floating(product=product)
        plain = to_numpy(matrix).astype(np.float64)
        if plain.shape != (widths[-1], widths[0]):
            raise ValueError(
                f"product must have shape {(widths[-1], widths[0])} to match dims, "
                f"got {plain.shape}."
            )
        left, singular, right = np.linalg.svd(plain)
        rank = numerical_rank(like(singular, matrix), plain.shape)
        if rank > min(widths):
            raise ValueError(
                f"dims must be at least {rank} everywhere, the rank of the product, got {widths}."
            )
        source = generator(rng)
        hidden = [random_orthogonal(width, source) for width in widths[1:-1]]
        roots = singular[:rank] ** (1 / (len(widths) - 1))
        net = cls._from_bases([right.T, *hidden, left], roots)
        return cls([like(w, matrix) for w in net.weights])

    @classmethod
    def _from_bases(cls, bases: list[Any], values: Any) -> Self:
        keep = values.size
        layers = [
            (above[:, :keep] * values) @ below[:, :keep].T for below, above in pairwise(bases)
        ]
        return cls(layers)

    def balance(self) -> float:
        """Return how far the network is from balanced: 0 if W_ℓ W_ℓᵀ = W_{ℓ+1}ᵀ W_{ℓ+1} throughout.

        The largest Frobenius norm of a difference, relative to the larger of its two terms.
        """
        self._require_single("balance")
        worst = 0.0
        for low, high in pairwise(map(to_numpy, self.factors)):
            a, b = low @ low.T, high.T @ high
            size = max(np.linalg.norm(a), np.linalg.norm(b))
            worst = max(worst, float(np.linalg.norm(a - b) / (size or 1.0)))
        return worst

    def alignment(self, x: Array, y: Array = None) -> float:
        """Return how far network, data and gradient are from sharing their singular vectors.

        The largest Frobenius norm of what is off the diagonal in the best common bases found,
        relative to the matrix: rounding for an aligned network, of the order of 1 for a random one.
        """
        self._require_single("alignment")
        return find_modes(self.hessian(x, y)).defect

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return type(self)(list(weights.values()), self.multipliers, self.residual)


def as_widths(dims: Sequence[int]) -> tuple[int, ...]:
    """Check the widths of a network."""
    widths = tuple(dims) if isinstance(dims, Iterable) else ()
    if len(widths) < 2 or not all(isinstance(d, (int, np.integer)) and d > 0 for d in widths):
        raise ValueError(f"dims must be at least two positive integers (d_0, …, d_L), got {dims}.")
    return tuple(int(d) for d in widths)


def random_orthogonal(size: int, rng: np.random.Generator) -> Any:
    """Return an orthogonal matrix, uniformly at random."""
    q, r = np.linalg.qr(rng.normal(size=(size, size)))
    return q * np.sign(np.diagonal(r))
