"""Claims of paper 000, sections 3.2 and B.2: the scalar ReLU network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hessence.papers.claims.dense_hessians import eigenvalue_gap, vector_gap
from hessence.papers.claims.protocol import DENSE, Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Scalar, relu_draws


def relu_eigenvalues() -> Verdict:
    """Check the spectrum of ReLU networks."""
    gaps, inside = [], []
    for net in relu_draws(6):
        values: list[float] = []
        for share, cell in net.cells():
            bulk = share * cell.residual
            values += [bulk, -bulk] * (len(cell.w) - 1)
            values += [share * value for value in cell.outliers()]
        gaps.append(eigenvalue_gap(values, net.hessian()))
        inside.append(bool(0 < np.sum(net.v > 0) < len(net.v)))
    return judge(
        gaps,
        f"all 2m eigenvalues {DENSE}, no neuron at its kink (a cell without neurons has no pair)",
        "both cells have neurons",
        inside,
    )


def relu_vectors() -> Verdict:
    """Check the outliers' eigenvectors of ReLU networks."""
    gaps = []
    for net in relu_draws(21):
        hessian = net.hessian()
        for share, cell in net.cells():
            for value in cell.outliers() if len(cell.w) else ():
                vector = net.outlier_vector(cell, value)
                gaps.append(vector_gap(share * value, vector, hessian))
    return judge(gaps, "residuals ‖Hz − λz‖, with every cell's own λ and δx, zero elsewhere")


def relu_bulk_vectors() -> Verdict:
    """Check the bulk's eigenvectors of ReLU networks."""
    gaps = []
    for net in relu_draws(22):
        hessian = net.hessian()
        for share, cell in net.cells():
            own = np.isin(net.v, cell.v)
            for sign in (1, -1) if len(cell.w) > 1 else ():
                side = cell.w + sign * cell.v
                # All unit vectors less their parts along w ± v span the directions across it.
                for z in np.eye(len(side)) - np.outer(side, side) / (side @ side):
                    if np.linalg.norm(z) > 1e-6:
                        vector = np.zeros((2, len(net.v)))
                        vector[:, own] = z, sign * z
                        value = sign * share * cell.residual
                        gaps.append(vector_gap(value, vector.ravel(), hessian))
    return judge(gaps, "residuals ‖Hz − λz‖ of (z, ±z), z across w ± v of a cell, zero elsewhere")


def _relu_top() -> Verdict:
    gaps = []
    for net in relu_draws(33):
        tops = [share * cell.outliers()[0] for share, cell in net.cells() if len(cell.w)]
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        gaps.append(abs(max(tops) / top - 1))
    return judge(gaps, "λ_max of dense Hessians, cells without neurons left out")


def _two_lines() -> Verdict:
    gaps = []
    for net in relu_draws(111):
        x = np.linspace(-2, 2, 9)
        truth = net.w @ np.maximum(np.outer(net.v, x), 0)
        slopes = [float(net.w[side] @ net.v[side]) for side in (net.v > 0, net.v <= 0)]
        printed = np.where(x > 0, slopes[0] * x, slopes[1] * x)
        gaps.append(float(np.max(np.abs(printed - truth))))
    return judge(gaps, "outputs at nine inputs of both signs")


def density() -> Verdict:
    """Check that a cell's eigenvalues are proportional to its share of the samples."""
    gaps = []
    for net in relu_draws(112):
        own = np.flatnonzero(np.tile(net.v > 0, 2))
        if len(own) == 0:
            continue
        negative = net.x <= 0
        before = np.linalg.eigvalsh(net.hessian()[np.ix_(own, own)])
        more = replace(
            net,
            x=np.concatenate([net.x, np.tile(net.x[negative], 3)]),
            y=np.concatenate([net.y, np.tile(net.y[negative], 3)]),
        )
        share = float(np.mean(more.x > 0) / np.mean(net.x > 0))
        gaps.append(eigenvalue_gap(share * before, more.hessian()[np.ix_(own, own)]))
    return judge(gaps, "the + cell's dense eigenvalues as the − cell's samples come four times")


def _tiny() -> Verdict:
    gaps, sizes = [], []
    for net in relu_draws(113):
        if not 0 < np.sum(net.v > 0) < len(net.v):
            continue
        x = np.concatenate([[1.0], -np.linspace(0.5, 1.5, 999)])
        fitted = replace(net, x=x, y=net.w @ np.maximum(np.outer(net.v, x), 0))
        linear = Scalar(net.w, net.v, x, float(net.w @ net.v) * x)
        counts = []
        for hessian in (fitted.hessian(), linear.hessian()):
            shares = np.abs(np.linalg.eigvalsh(hessian))
            shares = shares / shares.max()
            counts.append(int(np.sum(shares > 1e-12)))
            sizes.append(float(shares[shares > 1e-12].min()))
        gaps.append(max(sizes[-2] - 0.05, float(counts != [2, 1])))
    return judge(
        gaps,
        "at zero loss, one of 1000 samples in a cell: the second eigenvalue of ReLU networks is "
        f"{min(sizes):.0e} of the first at least; linear ones have no second",
    )


CLAIMS = (
    Claim(
        "000-eq3", "000 eq 3",
        "the network is linear on either side of 0, with slopes ⟨w_±, v_±⟩",
        _two_lines,
    ),
    Claim(
        "000-T3.4", "000 Theorem 3.4",
        "a ReLU network has each cell's linear spectrum, scaled by the cell's share of the samples",
        relu_eigenvalues,
    ),
    Claim(
        "000-relu-top", "000 §3.2",
        "the sharpness of a ReLU network is the larger of its cells' larger outliers",
        _relu_top,
    ),
    Claim(
        "000-density", "000 §3.2",
        "a cell's eigenvalues are proportional to its share of the samples",
        density,
    ),
    Claim(
        "000-tiny", "000 §3.2",
        "with ReLU, cells of few samples make eigenvalues that are tiny and not zero",
        _tiny,
    ),
    Claim(
        "000-RB.1", "000 Remark B.1",
        "the outliers' eigenvectors carry over to the cells of a ReLU network",
        relu_vectors,
    ),
    Claim(
        "000-relu-bulk", "000 App B.2",
        "the bulk's eigenvectors carry over to the cells of a ReLU network",
        relu_bulk_vectors,
    ),
)  # fmt: skip
