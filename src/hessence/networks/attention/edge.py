r"""Whether self-attention can settle at a learning rate: the flattest of its minima.

Gradient descent with rate η stays at a minimum only if the sharpness there is at most 2/η. The
loss depends on :math:`w_V` and :math:`t = \langle w_Q, w_K\rangle`, the sharpness of a minimum also
on :math:`N = \|w_Q\|^2 + \|w_K\|^2 \ge 2|t|`, and is least where :math:`w_Q = \pm w_K`. So the
flattest minimum is found among the minima in :math:`(w_V, t)`, of which there may be a whole curve:
for the tokens (a, −a) and targets (−a, a), with :math:`T = \tanh u`, it has the sharpness

.. math:: S(a) = a^2 \min_u\, \big[T^2 + (2a^2 u/\sqrt{d_K})\,(1 - T^2)^2/T^2\big].

Where this exceeds 2/η, no minimum of the least loss holds gradient descent: swings at the edge of
stability last for ever, unless it leaves for another valley or for infinity, as it may with tokens
of one sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hessence._common.arrays import Numbers, like, to_numpy
from hessence.data.losses import Squared
from hessence.networks.attention.attention_hessian import Scalars, outlier_block
from hessence.networks.attention.attention_network import Sequences
from hessence.networks.scalar.gram import Gram
from hessence.spectra.small_eigen import eigenvalues

POINTS = 2001
"""How many values of t are tried in each round."""

ROUNDS = 6
"""How often the search is narrowed to the neighbours of the best value of t."""

PERFECT = 1e-20
"""A loss that is this share of the targets' own counts as zero."""


Found = tuple[float, float, float, float]
"""w_V and t of a minimum, the loss and the sharpness there."""


@dataclass(frozen=True)
class Edge:
    """The flattest minimum of self-attention, and the threshold of a learning rate.

    Attributes
    ----------
    sharpness : float
        The largest eigenvalue at the flattest minimum.
    threshold : float
        2/η: what gradient descent tolerates.
    lasts : bool
        Whether no minimum of the least loss is flat enough, so that swings at the edge of stability
        last for as long as descent stays near to one.
    value, inner : float
        w_V and ⟨w_Q, w_K⟩ of the flattest minimum, where w_Q = ±w_K.
    loss : float
        The loss there.

    Examples
    --------
    >>> import hessence as hs
    >>> net = hs.SelfAttention(1.0, w_q=[1.0, 0.5], w_k=[0.5, 1.0])
    >>> [net.edge([[a, -a]], [[-a, a]], lr=2.3).lasts for a in (0.95, 1.0)]
    [False, True]
    """

    sharpness: float
    threshold: float
    lasts: bool
    value: float
    inner: float
    loss: float


def find_edge(net: Any, batch: Sequences, lr: float) -> Edge:
    """Return the flattest minimum of the mean-squared error, in the plane of (w_V, t)."""
    squared, targets = Squared(), to_numpy(batch.y)

    def measured(t: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the best w_V for each t, its loss, and the sharpness where w_Q = ±w_K."""
        inner = like(t, net.w_q)
        h = net._responses(batch, inner)[0]
        size, met = (to_numpy(batch.average(h * other)) for other in (h, batch.y))
        w = met / np.where(size == 0, 1.0, size)
        value = like(w, net.w_q)
        loss = to_numpy(net._loss_at(batch, squared, value, inner))
        first, second = net._scalars(batch, squared, value, inner)
        s = Scalars(*map(to_numpy, first.plus(second)))
        norm = 2 * np.abs(t)
        numbers = Gram(t, norm, norm + 2 * t, norm - 2 * t)
        sharp = eigenvalues(outlier_block(s, numbers))[..., 0]
        if int(net.w_q.shape[-1]) > 1:
            sharp = np.maximum(sharp, np.abs(s.gamma))
        return w, loss, sharp

    # t in units in which scores are of order one: from nearly none to as good as decided.
    scale = np.sqrt(int(net.w_q.shape[-1])) / max(float(np.max(to_numpy(batch.x) ** 2)), 1e-300)
    sizes = scale * np.logspace(-6, 3, POINTS // 2)
    t = np.concatenate([-sizes[::-1], [0.0], sizes])
    floor = PERFECT * float(np.mean(targets**2))

    def narrowed(places: Numbers, best: int, key: Callable[[Numbers, Numbers], Numbers]) -> Found:
        """Search between the neighbours of the best place for the least key, over and over."""
        for _ in range(ROUNDS):
            places = np.linspace(
                places[max(best - 1, 0)], places[min(best + 1, POINTS - 1)], POINTS
            )
            w, loss, sharp = measured(places)
            best = int(np.argmin(key(loss, sharp)))
        return float(w[best]), float(places[best]), float(loss[best]), float(sharp[best])

    _, loss, sharp = measured(t)
    perfect = loss <= floor
    # A fit may be perfect on a whole curve, of which the flattest is wanted, or at a single t,
    # which is between points: every valley of the loss is followed to its bottom.
    inner = (loss[1:-1] < loss[:-2]) & (loss[1:-1] < loss[2:]) & ~perfect[1:-1]
    places = {*(np.flatnonzero(inner) + 1).tolist(), int(np.argmin(loss))}
    found = [narrowed(t, place, lambda loss, sharp: loss) for place in sorted(places)]
    if perfect.any():
        flattest = int(np.argmin(np.where(perfect, sharp, np.inf)))
        found.append(
            narrowed(t, flattest, lambda loss, sharp: np.where(loss <= floor, sharp, np.inf))
        )
    fits = [each for each in found if each[2] <= floor]
    value, t_best, least, sharpness = (
        min(fits, key=lambda each: each[3]) if fits else min(found, key=lambda each: each[2])
    )
    return Edge(sharpness, 2 / lr, sharpness > 2 / lr, value, t_best, least)
