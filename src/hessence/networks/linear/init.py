"""Random linear networks in the usual parametrisations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hessence._common.arguments import Seed, generator
from hessence.networks.linear.deep_linear import DeepLinear, as_widths, random_orthogonal


def standard(dims: Sequence[int], rng: Seed = None) -> DeepLinear:
    """Return a network as PyTorch initialises its linear layers: uniform in ±1/√fan_in.

    Parameters
    ----------
    dims : sequence of int
        The widths (d_0, …, d_L).
    rng : int or numpy.random.Generator, optional
        The source of the weights.

    Examples
    --------
    >>> import hessence as hs
    >>> hs.init.standard((3, 100, 2), rng=0)
    DeepLinear(3-100-2)
    """
    source = generator(rng)
    return DeepLinear([source.uniform(-1, 1, size=(b, a)) / a**0.5 for a, b in _layers(dims)])


def ntk(dims: Sequence[int], rng: Seed = None) -> DeepLinear:
    """Return a network in the neural-tangent parametrisation.

    Standard normal weights, and multipliers 1/√fan_in that are not trained. The arguments are those
    of :func:`standard`.

    Examples
    --------
    >>> import hessence as hs
    >>> hs.init.ntk((4, 100, 1), rng=0).multipliers
    (0.5, 0.1)
    """
    source = generator(rng)
    layers = _layers(dims)
    return DeepLinear(
        [source.normal(size=(b, a)) for a, b in layers], multipliers=[a**-0.5 for a, _ in layers]
    )


def mup(dims: Sequence[int], rng: Seed = None) -> DeepLinear:
    r"""Return a network in the maximal-update parametrisation.

    Normal weights with variance :math:`\min(1, n_\ell/n_{\ell-1})/n_{\ell-1}`, so that the spectral
    norm of every layer is of the order of :math:`\sqrt{n_\ell/n_{\ell-1}}` (Yang, Simon & Bernstein
    2023). The arguments are those of :func:`standard`.

    Examples
    --------
    >>> import hessence as hs
    >>> hs.init.mup((3, 100, 2), rng=0).dims
    (3, 100, 2)
    """
    source = generator(rng)
    return DeepLinear(
        [source.normal(size=(b, a)) * (min(1.0, b / a) / a) ** 0.5 for a, b in _layers(dims)]
    )


def orthogonal(dims: Sequence[int], rng: Seed = None) -> DeepLinear:
    """Return a network whose layers have orthonormal rows or columns, uniformly at random.

    The arguments are those of :func:`standard`.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> first, second = hs.init.orthogonal((3, 5, 2), rng=0).weights
    >>> bool(np.allclose(first.T @ first, np.eye(3)))
    True
    >>> bool(np.allclose(second @ second.T, np.eye(2)))
    True
    """
    source = generator(rng)
    return DeepLinear([random_orthogonal(max(a, b), source)[:b, :a] for a, b in _layers(dims)])


def _layers(dims: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(as_widths(dims)))
