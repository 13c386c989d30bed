"""Claims of paper 000, section B.4: separate hidden units for every input or output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.dense_hessians import Array, dense_hessian, eigenvalue_gap, vector_gap
from hessence.papers.claims.protocol import DENSE, Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Scalar


def _decoupled(seed: int, *, outputs: bool) -> Iterator[tuple[Array, list[Scalar], bool]]:
    """Give a Hessian in the order (v_1, w_1, v_2, …), its parts, and if inputs are uncorrelated."""
    rng = np.random.default_rng(seed)
    for i in range(8):
        parts, width, samples = 2 + i % 2, 1 + i % 3, 8
        W, V = rng.normal(size=(2, parts, width))
        x = np.linalg.qr(rng.normal(size=(samples, parts)))[0].T * (1 + rng.random((parts, 1))) * 3
        y = rng.normal(size=(parts, samples))
        correlated = not outputs and i >= 6
        if correlated:
            x[1] += x[0]
        if outputs:
            x[:] = x[0]
        else:
            y[:] = y[0]

        def loss(points: NDArray[Any], x: Array = x, y: Array = y) -> NDArray[Any]:
            grouped = points.reshape(len(points), len(x), 2, -1)
            products = np.sum(grouped[:, :, 0] * grouped[:, :, 1], axis=2)
            terms = products[:, :, None] * x
            squares = (terms - y) ** 2 if outputs else (terms.sum(1, keepdims=True) - y[:1]) ** 2
            return np.asarray(squares.sum(axis=1).mean(axis=1) / 2)

        point = np.stack([V, W], axis=1).ravel()
        groups = [Scalar(W[k], V[k], x[k], y[k]) for k in range(parts)]
        yield dense_hessian(loss, point), groups, not correlated


def _spectrum(groups: Sequence[Scalar]) -> list[float]:
    values: list[float] = []
    for net in groups:
        values += [net.residual, -net.residual] * (len(net.w) - 1) + list(net.outliers())
    return values


def _inputs() -> Verdict:
    drawn = [
        (eigenvalue_gap(_spectrum(groups), hessian), uncorrelated)
        for hessian, groups, uncorrelated in _decoupled(23, outputs=False)
    ]
    other = max(gap for gap, uncorrelated in drawn if not uncorrelated)
    return judge(
        [gap for gap, uncorrelated in drawn if uncorrelated],
        f"all 2mD eigenvalues {DENSE}, m = 1 to 3, D = 2 and 3 (correlated inputs: {other:.0e})",
    )


def _outputs() -> Verdict:
    drawn = _decoupled(24, outputs=True)
    gaps = [eigenvalue_gap(_spectrum(groups), hessian) for hessian, groups, _ in drawn]
    return judge(gaps, f"all 2mK eigenvalues {DENSE}, m = 1 to 3, K = 2 and 3")


def _output_vectors() -> Verdict:
    gaps = []
    for hessian, groups, _ in _decoupled(25, outputs=True):
        width = len(groups[0].w)
        for k, net in enumerate(groups):
            for value in net.outliers():
                vector = np.zeros((len(groups), 2, width))
                vector[k] = np.reshape(net.outlier_vector(value), (2, width))
                gaps.append(vector_gap(value, vector.ravel(), hessian))
    return judge(gaps, "residuals ‖Hz − λz‖, zero for the other outputs, m = 1 to 3")


def _largest_variance() -> Verdict:
    gaps, inside, wrong = [], [], 0
    rng = np.random.default_rng(115)
    for i in range(16):
        alike = i < 8
        W, V = rng.normal(size=(2, 1 if alike else 3, 2)) * np.ones((1, 3, 1))
        scales = 1 + 0.1 * rng.permutation(3)
        x = np.linalg.qr(rng.normal(size=(8, 3)))[0].T * np.sqrt(8) * scales[:, None]
        y = np.sum(W * V, axis=1) @ x if alike else rng.normal(size=8)

        def loss(points: NDArray[Any], x: Array = x, y: Array = y) -> NDArray[Any]:
            w, v = points.reshape(len(points), 2, 3, 2).swapaxes(0, 1)
            return np.asarray(np.mean((np.sum(w * v, axis=2) @ x - y) ** 2, axis=1) / 2)

        hessian = dense_hessian(loss, np.concatenate([W.ravel(), V.ravel()]))
        tops = [
            float(np.linalg.eigvalsh(hessian[np.ix_(own, own)])[-1])
            for own in (np.array([2 * d, 2 * d + 1, 6 + 2 * d, 7 + 2 * d]) for d in range(3))
        ]
        gaps.append(float(np.argmax(tops) != np.argmax(scales)))
        inside.append(alike)
        wrong += int(gaps[-1])
    return judge(
        gaps, f"another input has the largest dense eigenvalue in {wrong} of 16 networks",
        "all inputs have the same weights and are fitted", inside,
    )  # fmt: skip


def _mixture() -> Verdict:
    rng = np.random.default_rng(116)
    gaps = []
    for size, width in ((2, 1), (3, 2), (4, 5)):
        W, V = rng.normal(size=(2, size, width))
        x = rng.normal(size=(size, 6))
        block = np.zeros((size * width, size))
        for d in range(size):
            block[d * width : (d + 1) * width, d] = V[d]
        truth = W.ravel() @ block @ x
        printed = sum((W[:, i] * V[:, i]) @ x for i in range(width))
        gaps.append(float(np.max(np.abs(printed - truth))))
    return judge(gaps, "outputs of w, V with a block of V for each input, D = 2 to 4, m = 1 to 5")


def _last_above(values: Sequence[float]) -> int:
    """Return the last place at which a value is above 0.001, or −1."""
    return max((place for place, value in enumerate(values) if value > 0.001), default=-1)


def _order_gaps(seed: int, problems: Callable[[Any], Sequence[tuple[float, Array]]]) -> list[float]:
    """Return, for eight draws of problems that do not see each other, how they are out of order.

    A problem is a target and its inputs. Each is learnt by descent from the same weights; the last
    number is the largest of those smaller outliers that should be negative.
    """
    rng = np.random.default_rng(seed)
    gaps, negative = [], []
    for _ in range(8):
        w, v = rng.normal(size=(2, 4)) / 4
        learnt, vanished = [], []
        for target, x in problems(rng):
            net, away, small = Scalar(w, v, x, target * x), [], []
            for step in range(600):
                if step % 6 == 0:
                    values = np.linalg.eigvalsh(net.hessian())
                    second = float(values.sum() - values[-1])
                    away.append(abs(net.product / target - 1))
                    small.append(abs(second) / values[-1])
                    if net.product < target / 3:
                        negative.append(second)
                rate = 0.1 * net.residual
                net = Scalar(net.w - rate * net.v, net.v - rate * net.w, x, net.y)
            learnt.append(_last_above(away))
            vanished.append(_last_above(small))
        ordered = combinations(sorted(zip(learnt, vanished, strict=True)), 2)
        gaps.append(float(any(sooner[1] > later[1] for sooner, later in ordered)))
    return [*gaps, max(negative)]


def _outputs_in_order() -> Verdict:
    def problems(rng: Any) -> Sequence[tuple[float, Array]]:
        x = rng.normal(size=8)
        return [(target, x) for target in (0.5, 1.0, 2.0)]

    return judge(
        _order_gaps(117, problems),
        "descent on three outputs, eight times, looked at every six steps: the orders in which "
        "they are learnt and in which their smaller outliers vanish, to a thousandth, and the sign "
        "of those of outputs that lag behind",
    )


def _inputs_in_order() -> Verdict:
    def problems(rng: Any) -> Sequence[tuple[float, Array]]:
        # Uncorrelated inputs do not see each other: each is a problem of its own.
        x = np.linalg.qr(rng.normal(size=(8, 3)))[0].T * np.sqrt(8)
        targets, scales = (0.5, 1.0, 2.0), (1.3, 1.0, 0.8)
        return [(t, s * own) for t, s, own in zip(targets, scales, x, strict=True)]

    return judge(
        _order_gaps(118, problems),
        "descent on three uncorrelated inputs of different variance and best weight β*, eight "
        "times: the orders in which they are learnt and in which their smaller outliers vanish, "
        "and the sign of those with β below a third of β*",
    )


CLAIMS = (
    Claim(
        "000-CB.1", "000 Corollary B.1",
        "with uncorrelated inputs, each with its own hidden units, the spectrum is that of every "
        "input by itself",
        _inputs,
    ),
    Claim(
        "000-variance", "000 App B.4",
        "in general, the input of the largest variance has the largest eigenvalue",
        _largest_variance,
    ),
    Claim(
        "000-eq114", "000 eq 114",
        "separate hidden units for every input are a sum of diagonal linear networks",
        _mixture,
    ),
    Claim(
        "000-CB.2", "000 Corollary B.2",
        "with separate hidden units for every output, the spectrum is that of every output by "
        "itself",
        _outputs,
    ),
    Claim(
        "000-CB.3", "000 Corollary B.3",
        "the outliers' eigenvectors for several outputs are λ(w_k, v_k) + δx(v_k, w_k)",
        _output_vectors,
    ),
    Claim(
        "000-outputs-order", "000 App B.4",
        "the smaller outliers of outputs vanish in the order in which these are learnt, and are "
        "negative at first",
        _outputs_in_order,
    ),
    Claim(
        "000-inputs-order", "000 App B.4",
        "the smaller outlier of every input has the sign that its own distance from β* gives it, "
        "and vanishes as this input is learnt",
        _inputs_in_order,
    ),
)  # fmt: skip
