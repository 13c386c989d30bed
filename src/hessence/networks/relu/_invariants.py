r"""Trace and squared norm of the Hessian of a network at fixed slopes, without its eigenvalues.

With one hidden layer and few samples, both follow from the n K × n K Gram matrix of the gradients
of all predictions. With J these gradients, S the loss' second derivative, s the hidden layer's
slopes and u the gradient of the loss in the predictions, the Hessian is :math:`J^\top S J + F`, and

.. math:: \|F\|^2 = 2\sum_{i,j} (u_i\cdot u_j)(x_i\cdot x_j)(s_i\cdot s_j),

x having one entry 1 more for a bias. Else both are read off the columns.
"""

from __future__ import annotations

from typing import Any

import array_api_compat as api

from hessence._common.arrays import Array, identity, transpose

COLUMNS = 2**22
"""How many numbers the columns that are read at a time may hold."""


def invariants(H: Any) -> tuple[Array, Array]:
    """Return trace and squared Frobenius norm of a ``ReLUHessian``."""
    few = int(H.gradient.shape[0] * H.gradient.shape[1]) <= H.shape[-1]
    return _from_gram(H) if few and H.depth == 2 else _from_columns(H)


def _from_columns(H: Any) -> tuple[Array, Array]:
    xp, size = api.array_namespace(H.x), int(H.shape[-1])
    trace = squared_norm = 0 * xp.sum(H.gradient)
    step = max(1, COLUMNS // size)
    for start in range(0, size, step):
        count = min(step, size - start)
        eye = xp.eye(size, count, k=-start, dtype=H.dtype, device=api.device(H.x))
        image = H.times(eye)
        trace = trace + xp.sum(image * eye)
        squared_norm = squared_norm + xp.sum(image * image)
    return trace, squared_norm


def _from_gram(H: Any) -> tuple[Array, Array]:
    xp, (n, outputs) = api.array_namespace(H.x), H.gradient.shape
    every = identity(outputs, H.x)
    # For each output and sample, the gradient in what each layer makes, (K, n, d).
    backs = H.pull(every[:, None, :] + xp.zeros((1, n, 1), dtype=H.dtype, device=api.device(H.x)))
    gram, weights = 0, {}
    for i, (back, signal) in enumerate(zip(backs, H.signals, strict=True), start=1):
        alike = xp.matmul(signal, transpose(signal))
        weights[f"W{i}"] = back[..., :, None] * signal[:, None, :]
        if f"b{i}" in H.weights:
            alike, weights[f"b{i}"] = alike + 1, back
        rows = xp.reshape(back, (outputs * n, -1))
        gram = gram + xp.matmul(rows, transpose(rows)) * xp.tile(alike, (outputs, outputs))
    # S times the Gram matrix: rows are (output, sample), as columns are once they are put in order.
    by_sample = xp.reshape(gram, (outputs * n, outputs, n))
    image = transpose(H.loss_hessian(transpose(by_sample)))
    image = xp.reshape(image, (outputs * n, outputs * n))
    trace = xp.sum(xp.linalg.diagonal(image))
    squared_norm = xp.sum(image * transpose(image))
    if H.part == "ggn":
        return trace, squared_norm
    outer = [xp.matmul(a, transpose(a)) for a in (H.gradient, H.x, H.slopes[0])]
    if "b1" in H.weights:
        outer[1] = outer[1] + 1
    squared_norm = squared_norm + 2 * xp.sum(outer[0] * outer[1] * outer[2])
    if H.part == "hessian":
        squared_norm = squared_norm + 2 * _overlap(H, weights)
    return trace, squared_norm


def _overlap(H: Any, weights: dict[str, Array]) -> Array:
    """Return the inner product of the two parts, from gradients (K, n, …) of the predictions."""
    xp, (n, outputs) = api.array_namespace(H.x), H.gradient.shape
    rows = {name: xp.reshape(w, (outputs * n, *w.shape[2:])) for name, w in weights.items()}
    bent, total = H.functional.multiply(rows), 0
    for name, row in rows.items():
        flat = transpose(xp.reshape(row, (outputs, n, -1)))
        pushed = H.loss_hessian(xp.permute_dims(flat, (1, 2, 0)))
        pulled = xp.reshape(bent[name], (outputs, n, -1))
        total = total + xp.sum(pulled * xp.permute_dims(pushed, (2, 1, 0)))
    return total
