"""Claims of paper 004, sections 3 and 4: depth separates the spectrum into two clusters."""

from __future__ import annotations

import numpy as np

from hessence.papers.claims.dense_hessians import gradient
from hessence.papers.claims.linear_networks import (
    BULK,
    RANK,
    aligned_start,
    descend,
    largest_values,
    padded_gap,
)
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import NetworkBatch, batched


def _shared() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        begun = aligned_start(71, depth, (0.9, 0.7))
        ended = descend(begun, 0.05, 30)
        values = np.array([0.9, 0.7])
        for _ in range(30):
            values = values - 0.05 * (values**depth - 1) * values ** (depth - 1)
        gaps.append(float(np.max(np.abs(largest_values(ended, RANK) - values))))
        for before, after in zip(begun.weights, ended.weights, strict=True):
            # The singular vectors stay, so that both products of the two are symmetric.
            mixed = (before @ after.T, before.T @ after)
            gaps += [float(np.max(np.abs(each - each.T))) for each in mixed]
    return judge(gaps, "30 steps of descent on all weights, depths 2 to 4, against the recursion")


def others() -> tuple[list[float], list[float], list[bool]]:
    """Return how far singular values beyond the target's rank move, and how much is left."""
    moved, left, low = [], [], []
    for depth, low_rank in ((2, False), (3, False), (2, True), (3, True)):
        begun = aligned_start(72, depth, (0.9, 0.8, 0.5), low_rank=low_rank)
        ended = descend(begun, 0.1, 300)
        value = float(largest_values(ended, 3)[:, 2].max())
        moved.append(abs(value - 0.5))
        left.append(value)
        low.append(low_rank)
    return moved, left, low


def _unchanged() -> Verdict:
    moved, _, low = others()
    return judge(
        moved, "change of the third singular value for a target of rank two, 300 steps",
        "the inputs have the target's rank", low,
    )  # fmt: skip


def _clusters() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        net = descend(aligned_start(73, depth, (0.97, 1.02)), 0.1, 60)
        s = largest_values(net, RANK)
        least, most = float(s.min()), float(s.max())
        values = np.linalg.eigvalsh(net.hessian())[::-1]
        # Weyl: what the loss still adds to the Gauss–Newton matrix.
        slack = float(np.linalg.norm(net.hessian() - net.solved().hessian(), 2))
        power = 2 * depth - 2
        top, middle = values[: RANK**2], values[RANK**2 : RANK**2 + BULK]
        gaps += [
            float(top.max()) - depth * most**power - slack,
            depth * least**power - float(top.min()) - slack,
            float(middle.max()) - most**power - slack,
            least**power - float(middle.min()) - slack,
            float(np.max(np.abs(values[RANK**2 + BULK :]))) - slack,
        ]
    return judge(gaps, "dense eigenvalues after 60 steps of descent, depths 2 to 4, against "
                 "L s^{2L−2} and s^{2L−2} with the distance of Weyl's inequality")  # fmt: skip


def _ratio() -> Verdict:
    gaps, told = [], []
    for depth in (2, 3, 4):
        net = descend(aligned_start(231, depth, (0.97, 1.02)), 0.1, 100)
        values = np.linalg.eigvalsh(net.hessian())[::-1]
        top, bulk = values[: RANK**2], values[RANK**2 : RANK**2 + BULK]
        ratios = float(top.min() / bulk.max()), float(top.max() / bulk.min())
        gaps += [abs(ratio / depth - 1) - 1e-3 for ratio in ratios]
        told.append(f"{ratios[0]:.4f} to {ratios[1]:.4f}")
    return judge(gaps, f"any dominant over any bulk eigenvalue, depths 2 to 4: {', '.join(told)}")


def _remark() -> Verdict:
    gaps, inside, told = [], [], []
    for of_product in (True, False):
        ratios = []
        for depth in (2, 4):
            pair = (1.0, 1.3 ** (1 / depth if of_product else 1))
            net = aligned_start(232, depth, pair).solved()
            values = np.linalg.eigvalsh(net.hessian())[::-1]
            ratios.append(float(values[RANK**2 - 1] / values[RANK**2]))
        gaps.append(ratios[0] - ratios[1])
        inside.append(of_product)
        told.append(f"{ratios[0]:.2f} and {ratios[1]:.2f}")
    return judge(
        gaps,
        "smallest dominant over largest bulk eigenvalue at depths 2 and 4, for singular values of "
        f"1 and 1.3: {told[0]} if they are the product's, {told[1]} if every layer's",
        "the spread is that of the layers' product", inside,
    )  # fmt: skip


def _uniform() -> Verdict:
    gaps, ratios = [], []
    for depth in (2, 3, 4):
        s = 1.2
        net = aligned_start(74, depth, (s, s)).solved()
        bulk = s ** (2 * depth - 2)
        values = [depth * bulk] * RANK**2 + [bulk] * BULK
        hessian = net.hessian()
        gaps.append(padded_gap(values, hessian))
        found = np.linalg.eigvalsh(hessian)[::-1]
        ratios.append(f"{found[0] / found[RANK**2]:.6f}")
    return judge(gaps, f"all dense eigenvalues at zero loss; ratios {', '.join(ratios)}")


def _activation() -> Verdict:
    gaps, inside, told = [], [], []
    for scale in (0.1, 1.0):
        ratios = []
        for depth in (2, 3, 4):
            net = aligned_start(233, depth, (0.9, 0.9))
            batch = NetworkBatch(batched([net.weights]), scale * net.X, scale * net.Y, "tanh")
            values = np.linalg.eigvalsh(batch.descend(0.1 / scale**2, 150).hessians()[0])[::-1]
            means = values[: RANK**2].mean(), values[RANK**2 : RANK**2 + BULK].mean()
            ratios.append(float(means[0] / means[1]))
            gaps.append(abs(ratios[-1] / depth - 1) - 0.05)
            inside.append(scale < 1)
        told.append(", ".join(f"{ratio:.2f}" for ratio in ratios) + f" for inputs of {scale:g}")
    return judge(
        gaps,
        f"mean dominant over mean bulk eigenvalue with tanh, depths 2 to 4: {'; '.join(told)}",
        "the inputs are small", inside,
    )  # fmt: skip


def _updates() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        net = aligned_start(234, depth, (0.9, 0.7))
        n = net.X.shape[1]
        mixed = (net.product @ net.X - net.Y) @ net.X.T / n
        printed = [
            (net.above(layer).T @ mixed @ net.below(layer).T).ravel() for layer in range(depth)
        ]
        truth = gradient(net.loss, net.point)
        gaps.append(float(np.max(np.abs(np.concatenate(printed) - truth))))
    return judge(gaps, "gradients by complex steps, depths 2 to 4")


CLAIMS = (
    Claim(
        "004-eq2", "004 eq 2",
        "descent moves a layer by the error between transposed products of the layers around it",
        _updates,
    ),
    Claim(
        "004-L3.4", "004 Lemma 3.4, eq 6",
        "descent keeps aligned layers aligned, and one recursion moves their singular values",
        _shared,
    ),
    Claim(
        "004-L3.4-rest", "004 Lemma 3.4",
        "singular values beyond the target's rank stay at their initial values",
        _unchanged,
    ),
    Claim(
        "004-T3.5", "004 Theorem 3.5",
        "r² eigenvalues are about L s^{2L−2}, r(d0 + dL − 2r) about s^{2L−2}, the others vanish",
        _clusters,
    ),
    Claim(
        "004-ratio", "004 Theorem 3.5, eq 9",
        "every dominant eigenvalue is L times every bulk eigenvalue, late in training",
        _ratio,
    ),
    Claim(
        "004-remark", "004, after Theorem 3.5",
        "the deeper the network, the easier its two clusters are kept apart",
        _remark,
    ),
    Claim(
        "004-C3.6", "004 Corollary 3.6",
        "with equal singular values there are two non-zero eigenvalues, and their ratio is L",
        _uniform,
    ),
    Claim(
        "004-activation", "004 §4, Fig 3",
        "with an activation too, dominant eigenvalues are L times those of the bulk",
        _activation, measured=True,
        differs="With small inputs tanh is nearly linear, and the ratio is the depth; the paper's "
        "inputs have variance 1.",
    ),
    Claim(
        "004-activation-split", "004 §4, Fig 3a",
        "with an activation too, the non-zero spectrum splits cleanly into two clusters",
        None, measured=True,
    ),
    Claim(
        "004-activation-bulk", "004 §4, Fig 3c",
        "with an activation too, the ratio grows linearly with depth and the bulk hardly changes",
        None, measured=True,
    ),
    Claim(
        "004-activation-converges", "004 §4, Fig 3b",
        "with an activation too, training converges",
        None, measured=True,
    ),
    Claim(
        "004-bulk", "004 §4, Fig 2",
        "the bulk of linear networks stays nearly the same at all depths",
        None, measured=True,
    ),
    Claim(
        "004-converges", "004 §4, Fig 2",
        "training of linear networks converges",
        None, measured=True,
    ),
)  # fmt: skip
