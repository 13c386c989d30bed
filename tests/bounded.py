"""Networks in odd units and at degenerate points, with their eigenvalues in extended precision."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np

import hessence as hs
from tests import extended as ex

# Predictions (n, K) of each network from its parameters as jets, in PyTorch's order.


def _products(t, shape, x):
    """⟨w, v⟩ of rows: t holds all v, then all w."""
    size = int(np.prod(shape))
    v, w = t[:size].reshape(*shape), t[size:].reshape(*shape)
    return (w * v).sum()


def scalar_linear(t, x, m):
    return ex.stack([_products(t, (m,), x) * ex.LONG(xi) for xi in x])[:, None]


def scalar_relu(t, x, m):
    v, w = t[:m], t[m:]
    rows = []
    for xi in x:
        alive = (v.a * xi > 0).astype(ex.LONG)
        rows.append((w * (v * ex.LONG(xi)) * alive).sum())
    return ex.stack(rows)[:, None]


def scalar_affine(t, x, m):
    v, b, w = t[:m], t[m : 2 * m], t[2 * m :]
    return ex.stack([(w * (v * ex.LONG(xi) + b)).sum() for xi in x])[:, None]


def scalar_batch_norm(t, x, m):
    """With or without a shift; the signs of v, on which nothing else depends, are constants."""
    gamma, w = t[m : 2 * m] * np.sign(t.a[:m]), t[-m:]
    gap = np.asarray(x, ex.LONG) - ex.LONG(np.mean(x))
    gap = gap - gap.mean()
    gap = gap / np.sqrt((gap * gap).mean())
    rows = [gamma * xi for xi in gap]
    if len(t.a) > 3 * m:
        rows = [row + t[2 * m : 3 * m] for row in rows]
    return ex.stack([(w * row).sum() for row in rows])[:, None]


def decoupled_inputs(t, x, shape):
    g = _products(t, shape, x)
    return ex.stack([(g * row.astype(ex.LONG)).sum() for row in x])[:, None]


def decoupled_outputs(t, x, shape):
    g = _products(t, shape, x)
    return ex.stack([g * ex.LONG(xi) for xi in x], axis=0)


def linear(t, x, shapes, residual=None):
    """Return what is learned of the predictions; the inputs are added by ``predict``."""
    start, product = 0, None
    for rows, columns in shapes:
        factor = t[start : start + rows * columns].reshape(rows, columns)
        start += rows * columns
        if product is None:
            product = factor
        elif residual == "layers":
            product = ex.matmul(factor + np.eye(rows, dtype=ex.LONG), product) + factor
        else:
            product = ex.matmul(factor, product)
    return ex.stack([(product * row.astype(ex.LONG)).sum() for row in x], axis=0)


def relu(t, x, shapes):
    out = []
    for row in np.asarray(x, ex.LONG):
        start, signal = 0, row
        for i, (rows, columns) in enumerate(shapes):
            W = t[start : start + rows * columns].reshape(rows, columns)
            start += rows * columns
            signal = (W * signal).sum()
            if i < len(shapes) - 1:
                signal = signal * (signal.a > 0).astype(ex.LONG)
        out.append(signal)
    return ex.stack(out, axis=0)


def self_attention(t, x, bias=None):
    """Return f = w_V A x of sequences (B, n), one row for each."""
    m, rows = (len(t.a) - 1) // 2, []
    inner = (t[1 : m + 1] * t[m + 1 :]).sum() * (1 / np.sqrt(ex.LONG(m)))
    for sequence in np.asarray(x, ex.LONG):
        for token in sequence:
            # Scores less that of the largest, so that small weights keep their digits.
            scores = stack_of(inner, token * sequence)
            best = int(np.argmax(scores.a))
            raised = stack_of(inner, token * (sequence - sequence[best])).exp()
            others = np.arange(len(sequence)) != best
            rest = (raised * others.astype(ex.LONG)).sum()
            moved = (raised * (sequence - sequence[best])).sum() * (rest + ex.LONG(1)).reciprocal()
            rows.append(t[0] * (moved + sequence[best]))
    return ex.stack(rows, axis=0)[:, None]


def matrix_attention(t, x, shapes):
    """Return f = A x W_V of sequences (B, n, d), one row for each token."""
    pieces, start = [], 0
    for rows, columns in shapes:
        pieces.append(t[start : start + rows * columns].reshape(rows, columns))
        start += rows * columns
    W_v, W_q, W_k = pieces
    scale, out = 1 / np.sqrt(ex.LONG(shapes[1][1])), []
    for sequence in np.asarray(x, ex.LONG):
        for token in sequence:
            query = ex.stack([(W_q[:, k] * token).sum() for k in range(shapes[1][1])])
            direction = ex.stack([(W_k[i] * query).sum() for i in range(len(token))]) * scale
            scores = ex.stack([(direction * other).sum() for other in sequence])
            gaps = sequence - sequence[int(np.argmax(scores.a))]
            raised = ex.stack([(direction * gap).sum() for gap in gaps]).exp()
            others = (np.arange(len(gaps)) != int(np.argmax(scores.a))).astype(ex.LONG)
            inverse = ((raised * others).sum() + ex.LONG(1)).reciprocal()
            h = ex.stack([(raised * column).sum() * inverse for column in gaps.T])
            h = h + sequence[int(np.argmax(scores.a))]
            out.append(ex.stack([(W_v[:, k] * h).sum() for k in range(shapes[0][1])]))
    return ex.stack(out, axis=0)


def stack_of(jet, factors):
    return ex.stack([jet * factor for factor in factors])


# Drawing.


def _numbers(rng, shape):
    """Ordinary numbers, and ones, zeros and powers of two often enough."""
    values = rng.normal(size=shape)
    simple = rng.choice([0.0, 1.0, -1.0, 0.5, -2.0], size=shape)
    return np.where(rng.random(shape) < rng.choice([0.0, 0.0, 0.3, 1.0]), simple, values)


def _units(rng, count):
    """Powers of ten, of which mostly one is far from 1."""
    units = np.ones(count)
    if rng.random() < 0.6:
        units[rng.integers(count)] = 10.0 ** rng.integers(-9, 10)
    if rng.random() < 0.15:
        units = 10.0 ** rng.integers(-9, 10, size=count)
    return units


def _related(rng, first, second):
    match rng.integers(8):
        case 0:
            return first.copy()
        case 1:
            return -first
        case 2:
            return first * (1 + 1e-9 * second)
        case 3:
            return 0 * first
    return second


def draw(rng, kind=None):
    """Return the kind, a network, its data, a loss, and the oracle's predictions of jets."""
    kind = kind or rng.choice(list(KINDS))
    n, m = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    D, K = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    size = 10.0 ** rng.choice([0, 0, 0, -9, -4, 4, 9])
    net, x, f, K = KINDS[kind](rng, n, m, D, K, size)
    loss = rng.choice(LOSSES[kind])
    predictions = np.asarray(f(ex.variables(np.asarray(net.parameters())), x).a, float)
    if kind in RESIDUAL:
        predictions = predictions + x
    n = len(predictions)
    y = _numbers(rng, (n, K)) * _units(rng, K)
    match rng.integers(5):
        case 0:
            y = predictions.copy()
        case 1:
            y = predictions * (1 + 1e-12 * _numbers(rng, (n, K)))
    if loss == "logistic":
        y = np.where(y < 0, -1.0, 1.0)
    if loss == "cross-entropy":
        y = np.argmax(y, axis=1)
    if kind == "SelfAttention":
        return kind, net, x, y.reshape(x.shape), str(loss), f
    if kind == "MatrixAttention":
        shape = x.shape[:2] if loss == "cross-entropy" else (*x.shape[:2], K)
        return kind, net, x, y.reshape(shape), str(loss), f
    scalar = kind.startswith("Scalar") or kind == "DecoupledInputs"
    return kind, net, x, y[:, 0] if scalar and y.ndim == 2 else y, str(loss), f


def _scalar(make, forward, order):
    def case(rng, n, m, D, K, size):
        weights = [_numbers(rng, m) * _units(rng, m) * size for _ in range(order)]
        weights[-1] = _related(rng, weights[0], weights[-1])
        if make is hs.ScalarReLU:
            weights[1] = np.where(weights[1] == 0, 1.0, weights[1])
        x = _numbers(rng, n) * 10.0 ** rng.choice([0, 0, -9, 9, 3])
        return make(*weights), x, lambda t, x: forward(t, x, m), 1

    return case


def _batch_norm(rng, n, m, D, K, size):
    w, gamma, v = (_numbers(rng, m) * _units(rng, m) for _ in range(3))
    v = np.where(v == 0, 1.0, v)
    gamma = _related(rng, w, gamma)
    beta = _related(rng, w, _numbers(rng, m)) if rng.random() < 0.5 else None
    x = rng.normal(size=n + 1) * 10.0 ** rng.choice([0, 0, -9, 9, 3])
    x = x + 10.0 ** rng.choice([-9, 0, 3, 9]) * rng.choice([0.0, 1.0])
    if np.ptp(x) == 0:
        x[0] = 1 + 2 * x[0]
    net = hs.ScalarBatchNorm(size * w, gamma, v, beta)
    return net, x, lambda t, x: scalar_batch_norm(t, x, m), 1


def _decoupled(make, forward):
    def case(rng, n, m, D, K, size):
        rows = D if make is hs.DecoupledInputs else K
        W = _numbers(rng, (rows, m)) * _units(rng, rows)[:, None] * size
        V = _related(rng, W, _numbers(rng, (rows, m)) * _units(rng, rows)[:, None])
        inputs = make is hs.DecoupledInputs
        x = _numbers(rng, (n, D)) * _units(rng, D) if inputs else _numbers(rng, n)
        if inputs and rng.random() < 0.3:
            x = x * (np.arange(n)[:, None] % D == np.arange(D))
        return make(W, V), x, lambda t, x: forward(t, x, (rows, m)), 1 if inputs else rows

    return case


def _attention(rng, n, m, D, K, size):
    x = _numbers(rng, (min(n, 2), m + 1)) * 10.0 ** rng.choice([0, 0, 0, 1, -3, 2])
    w_q = _numbers(rng, min(D, 2)) * 10.0 ** rng.choice([0, 0, -4, 1])
    w_k = _related(rng, w_q, _numbers(rng, min(D, 2)))
    w_v = float(_numbers(rng, ())) * size
    return hs.SelfAttention(w_v, w_q, w_k), x, self_attention, 1


def _matrix_attention(rng, n, m, D, K, size):
    d, keys = min(D, 2), min(m, 2)
    x = _numbers(rng, (min(n, 2), 2, d)) * 10.0 ** rng.choice([0, 0, 0, 1, -3])
    W_v, W_q = _numbers(rng, (d, K)) * size, _numbers(rng, (d, keys))
    W_k = _related(rng, W_q, _numbers(rng, (d, keys)))
    shapes = ((d, K), (d, keys), (d, keys))
    return hs.MatrixAttention(W_v, W_q, W_k), x, lambda t, x: matrix_attention(t, x, shapes), K


def _relu(rng, n, m, D, K, size):
    dims = [min(D, 2), *(int(rng.integers(1, 4)) for _ in range(rng.integers(1, 3))), K]
    shapes = [(b, a) for a, b in pairwise(dims)]
    weights = [rng.normal(size=shape) for shape in shapes]
    weights[0] = size * _units(rng, dims[1])[:, None] * weights[0]
    x = rng.normal(size=(n, dims[0])) * _units(rng, dims[0])
    return hs.ReLU(weights), x, lambda t, x: relu(t, x, shapes), K


def _chain(depth, residual=None):
    def case(rng, n, m, D, K, size):
        layers = depth or int(rng.integers(1, 4))
        dims = [D, *(int(rng.integers(1, 4)) for _ in range(layers - 1)), K]
        if residual:
            D = K = min(D, 2)
            dims = [D, *(dims[1:-1] if residual == "both" else [D] * (layers - 1)), D]
        shapes = [(b, a) for a, b in pairwise(dims)]
        weights = [
            _units(rng, b)[:, None] * _numbers(rng, (b, a)) * _units(rng, a)
            if rng.random() < 0.4 else _numbers(rng, (b, a))
            for b, a in shapes
        ]  # fmt: skip
        weights[0] = size * weights[0]
        x = _numbers(rng, (n, D)) * _units(rng, D)
        if rng.random() < 0.2:
            x = np.linalg.qr(rng.normal(size=(max(n, D), D)))[0] * 10.0 ** rng.integers(-3, 4)
            x = x[:n] if n >= D else x
        if residual == "both":
            net = hs.ResidualLinear(*weights)
        elif depth == 2:
            net = hs.TwoLayerLinear(*weights)
        else:
            net = hs.DeepLinear(weights, residual=residual == "layers")
        return net, x[:n], lambda t, x: linear(t, x, shapes, residual), K

    return case


KINDS = {
    "ScalarLinear": _scalar(hs.ScalarLinear, scalar_linear, 2),
    "ScalarReLU": _scalar(hs.ScalarReLU, scalar_relu, 2),
    "ScalarAffine": _scalar(hs.ScalarAffine, scalar_affine, 3),
    "ScalarBatchNorm": _batch_norm,
    "DecoupledInputs": _decoupled(hs.DecoupledInputs, decoupled_inputs),
    "DecoupledOutputs": _decoupled(hs.DecoupledOutputs, decoupled_outputs),
    "TwoLayerLinear": _chain(2),
    "DeepLinear": _chain(None),
    "residual layers": _chain(None, "layers"),
    "ResidualLinear": _chain(2, "both"),
    "ReLU": _relu,
    "SelfAttention": _attention,
    "MatrixAttention": _matrix_attention,
}
RESIDUAL = ("residual layers", "ResidualLinear")
POINTWISE = ("mse", "mse", "logistic", "huber")
SCALAR = ("Scalar", "Decoupled", "Self")
LOSSES = {
    kind: POINTWISE if kind.startswith(SCALAR) else (*POINTWISE, "cross-entropy") for kind in KINDS
}


def dense(net, x, y, loss, f, part="hessian"):
    """Return the Hessian, or one of its parts, in extended precision."""
    jets = f(ex.variables(np.asarray(net.parameters())), np.asarray(x))
    targets = np.ravel(y) if loss == "cross-entropy" else np.reshape(y, jets.a.shape)
    if getattr(net, "constant", None) is not None:
        # Losses of the residual see y − x, in which nothing small is rounded off.
        shift = np.asarray(x, ex.LONG)
        if loss in ("mse", "huber"):
            targets = targets - shift
        else:
            jets = jets + shift

    # The sum of both parts may be so large that their difference tells little of the smaller one.
    if part == "ggn":
        jets = replace(jets, h=0 * jets.h)
    elif part == "functional":
        jets = replace(jets, g=0 * jets.g)
    return ex.LOSSES[loss](jets, targets).h / len(jets.a)


def excess(net, x, y, loss, f, part="hessian"):
    """Return the worst ratio of an eigenvalue's error to its bound, and the spectrum.

    What the oracle itself may be off by is taken off: some of its spacings of ‖H‖.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        H = net.hessian(x, y, loss)
        spectrum = (H if part == "hessian" else getattr(H, part)).spectrum()
        truth = ex.eigenvalues(dense(net, x, y, loss, f, part))
    gaps = np.abs(spectrum.eigenvalues.astype(ex.LONG) - truth)
    floor = 16 * len(truth) * ex.SPACING * np.abs(truth).max() + np.finfo(float).tiny * 1e20
    bounds = spectrum.errors + floor
    return float((gaps / bounds).max()), spectrum
