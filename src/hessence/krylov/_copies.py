r"""Was a copy of an eigenvalue overlooked? A test with a random vector and a stated probability.

A Krylov space holds one direction of every eigenspace that its first vector meets. Further copies
of a multiple eigenvalue are orthogonal to it. So a random unit vector u of the complement, of
dimension N, meets an overlooked eigenvector z with weight
:math:`\omega = (u^\top z)^2`, and :math:`P(\omega < t^2 / N) \le \sqrt{2/\pi}\, t`.

Lanczos from u inside the complement gives a Jacobi matrix with coefficients α, β, whose orthonormal
polynomials :math:`p_j` bound the weight that the spectral measure of u can have at a point x
(Chebyshev, Markov & Stieltjes):

.. math:: \omega(x) \le 1 / K(x), \quad K(x) = \sum_j p_j(x)^2, \quad
          \beta_{j+1} p_{j+1} = (x - \alpha_j) p_j - \beta_j p_{j-1} .

K grows exponentially in the number of products wherever x lies beyond the rest of the spectrum. So
after a few of them an eigenvalue at x or beyond would have been met with more weight than 1/K, but
for a probability of :math:`\delta = \sqrt{2N / (\pi K(x))}`. If there is a copy, its Ritz value
rises above the least wanted one, which the signs of the :math:`p_j` show (Sturm).
"""

from __future__ import annotations

import numpy as np

from hessence._common.arguments import Which
from hessence._common.arrays import Numbers
from hessence.krylov._basis import Basis


def hiding_places(
    wanted: Numbers, which: Which, margin: Numbers, *, copies_only: bool = True
) -> Numbers:
    """Return where a value must lie to count as overlooked, and where to look for one.

    The values (*batch, k) have the most wanted first. The result (*batch, 2, 2) holds two numbers
    for the upper side of the spectrum, then two for −H. The first is the least wanted value, moved
    outwards by the margin: a copy of that value changes nothing, a copy of any other would displace
    it. So the second is the nearest wanted value beyond the first, or the first again unless
    `copies_only`. NaN where there is nothing to look for.
    """
    sides = []
    for sign in (1, -1):
        members, bound = _side(sign * wanted, which, sign)
        edge = bound + margin
        beyond = members & (sign * wanted > edge[..., None])
        nearest = np.where(beyond, sign * wanted, np.inf).min(axis=-1) if copies_only else edge
        nothing = np.isinf(nearest)
        sides.append(np.stack([np.where(nothing, np.nan, x) for x in (edge, nearest)], axis=-1))
    return np.stack(sides, axis=-2)


def search_for_copies(
    basis: Basis, places: Numbers, *, confidence: float, products: int, complement: int
) -> float | None:
    """Search the basis' complement, of dimension `complement`, for values in the hiding places.

    Stops at the wanted confidence or after so many products. Returns the confidence that nothing
    was overlooked, or None if something was. The vectors used stay in the basis.
    """
    # Pending vectors may hold a good part of an overlooked copy, so they are searched too.
    aside = basis.set_aside()
    enough = 2 * complement / (np.pi * (1 - confidence) ** 2)
    signs = np.asarray([1.0, -1.0])[:, None]
    before, now = np.zeros(places.shape), np.ones(places.shape)
    coupling = np.zeros(places.shape)
    mass = np.where(np.isnan(places[..., 1]), np.inf, 1.0)
    basis.add_random()
    for _ in range(products):
        if not basis.pending:
            break
        index = basis.count
        basis.expand()
        diagonal = basis.inside[..., index, index][..., None, None]
        onward = np.array(basis.outside[..., -1, index])[..., None, None]
        ahead = (places - signs * diagonal) * now - coupling * before
        searching = mass < enough
        if (searching & (ahead[..., 0] <= 0)).any():
            basis.take_back(*aside)
            return None
        # A coupling of zero ends the chain: all that u meets is known. What is settled is no longer
        # updated, or its polynomials would overflow in the end.
        going = searching[..., None] & (onward > 0)
        before, now = now, np.where(going, ahead / np.where(onward > 0, onward, 1.0), 0.0)
        mass = np.where(searching, np.where(going[..., 0], mass + now[..., 1] ** 2, np.inf), mass)
        coupling = onward
        if (mass >= enough).all():
            break
    basis.take_back(*aside)
    doubt = (2 * complement / (np.pi * mass.min())) ** 0.5
    return 1 - min(1.0, float(doubt))


def _side(wanted: Numbers, which: Which, sign: int) -> tuple[Numbers, Numbers]:
    """Return which of the values count on the upper side, and the least of those wanted there."""
    if which == "LM":
        return wanted > 0, np.abs(wanted).min(axis=-1)
    members = np.zeros(wanted.shape, dtype=bool)
    if which == "BE":
        members[..., 0 if sign > 0 else 1 :: 2] = True
    else:
        members[...] = (which == "LA") == (sign > 0)
    return members, np.where(members, wanted, np.inf).min(axis=-1)
