r"""All eigenvalues of networks with one output, exactly.

Where the matrix is large, it is first brought down to its range:

- Linear, any depth. The gradient g of the loss in the end-to-end matrix is one row, so a change
  :math:`dW_\ell` enters the second variation only through :math:`s_\ell^\top dW_\ell` and
  :math:`dW_\ell p_\ell`, where :math:`s_\ell^\top = W_L \cdots W_{\ell+1}` and
  :math:`p_\ell = W_{\ell-1}\cdots W_1 g`. That leaves :math:`D + 2m - 1` of :math:`m(D+1)`
  dimensions at two layers, :math:`D + 6m - 3` at four.
- ReLU, two layers. The functional part has rank 2 for each neuron, the Gauss–Newton part rank n in
  all: 2m + n dimensions.
- ReLU, four layers, one input. Without biases, all samples of one sign say the same: two samples
  with their moments take their place, and units form cells (:class:`hessence.ReLU`).
- ReLU, four layers, more inputs. Samples differ in their gates, nearly every unit is a cell of its
  own, and inputs and deltas of a layer span all dimensions: nothing is saved. These networks are
  solved in full, at the widths that allow it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import hessence as hs
from hessence.papers.experiments.shared.relu_hessian import ReLUHessian


def eigenvalues(weights: Any, x: Any, y: Any, activation: str) -> tuple[Any, int]:
    """Return eigenvalues, and how many more are zero."""
    parameters = sum(w.size for w in weights)
    if activation == "linear":
        matrix = linear_on_range(weights, x, y)
    elif len(weights) == 2 and 2 * len(weights[0]) + len(x) < parameters:
        matrix = relu_on_range(weights[0], weights[1], x, y)
    elif x.shape[1] == 1:
        values = hs.ReLU(list(weights)).hessian(*two_samples(x, y)).spectrum().eigenvalues
        return values[values != 0], int(np.sum(values == 0))
    else:
        matrix = ReLUHessian([w[None] for w in weights], x, y).dense()[0]
    return np.linalg.eigvalsh((matrix + matrix.T) / 2), parameters - len(matrix)


def two_samples(x: Any, y: Any) -> tuple[Any, Any]:
    """Return one sample of either sign that a homogeneous network cannot tell from all of them."""
    found = []
    for sign in (1, -1):
        own = sign * x[:, 0] > 0
        size = sign * max(float(np.linalg.norm(x[own])), 1e-300)
        found.append((size, float(x[own, 0] @ y[own, 0]) / size))
    samples = np.asarray(found) * (2 / len(x)) ** 0.5
    return samples[:, :1], samples[:, 1:]


def linear_on_range(weights: Any, x: Any, y: Any) -> Any:
    r"""Return the Hessian of a linear network with one output on its range.

    Coordinates are :math:`a_\ell = \hat s_\ell^\top dW_\ell` for every layer and, for all but the
    last, the part of :math:`dW_\ell \hat p_\ell` orthogonal to :math:`s_\ell`. The second
    variation is
    :math:`dM\,\Sigma\,dM^\top + 2\sum_{k>l} (s_k^\top dW_k)\, W_{k-1}\cdots W_{l+1}\, (dW_l p_l)`
    with :math:`dM = \sum_\ell (s_\ell^\top dW_\ell)\, P_\ell`.
    """
    before, after = [np.eye(x.shape[1])], [np.ones((1, 1))]
    for w in weights:
        before.append(w @ before[-1])
    for w in weights[:0:-1]:
        after.insert(0, after[0] @ w)
    gradient = (before[-1] @ x.T - y.T) @ x / len(x)
    root = x.T / len(x) ** 0.5
    rows = []
    changes: list[tuple[Any, Any]] = []
    widths = [len(p) for p in before[:-1]]
    across = [_complement(s[0]) for s in after[:-1]]
    size = sum(widths) + sum(basis.shape[1] for basis in across)
    start = 0
    for i, width in enumerate(widths):
        s, p = after[i][0], before[i] @ gradient[0]
        out, inward = np.zeros((size, width)), np.zeros((size, len(s)))
        along = np.arange(start, start + width)
        start += width
        out[along, np.arange(width)] = np.linalg.norm(s)
        inward[along] = np.outer(p, s / np.linalg.norm(s))
        if i < len(across):
            beside = np.arange(start, start + across[i].shape[1])
            start += len(beside)
            inward[beside] = across[i].T * np.linalg.norm(p)
        changes.append((out, inward))
        rows.append(out @ before[i] @ root)
    moved = sum(rows[1:], rows[0])
    matrix = moved @ moved.T
    for low in range(len(weights) - 1):
        inner = changes[low][1]
        for high in range(low + 1, len(weights)):
            cross = changes[high][0] @ inner.T
            matrix += cross + cross.T
            inner = inner @ weights[high].T
    return matrix


def _complement(vector: Any) -> Any:
    """Return an orthonormal basis of the orthogonal complement of a vector, as columns."""
    basis, _ = np.linalg.qr(vector[:, None], mode="complete")
    return basis[:, 1:]


def relu_on_range(first: Any, second: Any, x: Any, y: Any) -> Any:
    r"""Return the Hessian of w·φ(Vx) on a space that holds its range, of dimension 2m + n.

    The functional part couples :math:`w_j` with :math:`v_j` along :math:`q_j = E[\delta\,
    \phi'(v_j x)\, x]`. The part of the samples' gradients J orthogonal to these 2m directions
    enters only through its Gram matrix, so a square root of that takes its place.
    """
    n, m = len(x), len(first)
    w, z = second[0], x @ first.T
    gates, hidden = (z > 0).astype(float), np.maximum(z, 0)
    residual = hidden @ w - y[:, 0]
    q = (gates * residual[:, None]).T @ x / n
    size = np.linalg.norm(q, axis=1)
    unit = q / np.where(size > 0, size, 1)[:, None]
    along = np.concatenate([gates * w * (x @ unit.T), hidden], axis=1)
    gram = ((gates * w**2) @ gates.T) * (x @ x.T) + hidden @ hidden.T
    kept, vectors = np.linalg.eigh(gram - along @ along.T)
    root = vectors * np.sqrt(np.maximum(kept, 0))
    jacobian = np.concatenate([along, root], axis=1)
    matrix = jacobian.T @ jacobian / n
    neurons = np.arange(m)
    matrix[neurons, neurons + m] += size
    matrix[neurons + m, neurons] += size
    return matrix
