"""The sharpness of an aligned linear network, without solving all of its pairs."""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.linear.aligned import Chains
from hessence.networks.linear.pair_blocks import PairEntries


def largest_eigenvalue(chains: Chains) -> float:
    """Return the sharpness of an aligned network, solving only the pairs that can hold it.

    A pair's largest eigenvalue is at most that of its Gauss–Newton part plus the Frobenius norm of
    its functional part. Both bounds come for all pairs from two matrix products; the exact solver
    sees the pairs whose bound exceeds the best value found among the chains with themselves.
    """
    s, exists = chains.singular, chains.place >= 0
    count = chains.count
    ones = np.ones((1, count))
    below = np.concatenate([ones, np.cumprod(s[:-1], axis=0)]) * exists[:-1]
    above = np.concatenate([np.cumprod(s[:0:-1], axis=0)[::-1], ones]) * exists[1:]
    reach = np.where(exists[-1], 1.0, 0.0)
    ggn = ((above**2) * reach).T @ (below**2 * np.where(exists[0], chains.variance, 0.0))
    functional = _functional_squares(chains, below, above)
    bound = np.maximum(ggn, ggn.T) + np.sqrt(2 * (functional + functional.T))
    every = np.arange(count)
    best = float(_largest_of_pairs(chains, every, every).max(initial=0.0))
    first, second = np.nonzero(np.triu(bound, k=1) > best)
    # The likeliest pairs first: they raise the bar for the rest.
    order = np.argsort(-bound[first, second], kind="stable")
    for start in range(0, len(order), 4096):
        own = order[start : start + 4096]
        i, j = first[own], second[own]
        open_pairs = bound[i, j] > best
        if not open_pairs.any():
            break
        values = _largest_of_pairs(chains, i[open_pairs], j[open_pairs])
        best = max(best, float(values.max()))
    return best


def _functional_squares(chains: Chains, below: Numbers, above: Numbers) -> Numbers:
    """Return Σ_{k>l} of the squared couplings for gradient of t and middle of j, (N, N)."""
    depth, count = chains.singular.shape
    outer, middle = [], []
    for k in range(2, depth + 1):
        for l in range(1, k):  # noqa: E741 - the papers' letter
            outer.append((above[k - 1] * below[l - 1] * chains.gradient) ** 2)
            middle.append(np.prod(chains.singular[l : k - 1], axis=0) ** 2)
    if not outer:
        return np.zeros((count, count))
    return np.asarray(np.stack(outer).T @ np.stack(middle))


def _largest_of_pairs(chains: Chains, i: Numbers, j: Numbers) -> Numbers:
    """Return the largest eigenvalue of the block of each pair (i, j), (pairs,)."""
    depth = chains.singular.shape[0]
    layers = tuple(range(1, depth + 1))
    entries = PairEntries(chains, chains.variance, chains.gradient)
    same = bool((i == j).all())
    matrix = entries.matrices(i, j, layers, () if same else layers)
    # Coordinates that a pair does not have become zero rows, which add eigenvalues 0 only.
    exists = chains.place >= 0
    has = np.stack([exists[ell, i] & exists[ell - 1, j] for ell in layers], axis=-1)
    if not same:
        back = np.stack([exists[ell, j] & exists[ell - 1, i] for ell in layers], axis=-1)
        has = np.concatenate([has, back], axis=-1)
    matrix = matrix * has[:, :, None] * has[:, None, :]
    return np.asarray(np.linalg.eigvalsh(matrix)[:, -1])
