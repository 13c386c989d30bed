"""The solvable networks that have two layers, as a two-layer network with data and a loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence._common.arrays import Numbers, to_numpy
from hessence.data.losses import Huber, PointwiseLoss, Squared, as_loss, one_hot
from hessence.networks.linear.two_layer_linear import TwoLayerLinear
from hessence.networks.network import Network
from hessence.networks.relu.relu import ReLU
from hessence.networks.scalar.scalar_affine import ScalarAffine
from hessence.networks.scalar.scalar_linear import ScalarLinear
from hessence.networks.scalar.scalar_relu import ScalarReLU
from hessence.networks.two_layer.problem import ULPS, UNIT, LossAt, Rectified, TwoLayer, stable_norm


def of_network(network: Network, data: Any, loss: Any) -> TwoLayer:
    """Read a network of this library, with samples x and y and a pointwise loss."""
    if network.batch_shape:
        raise ValueError("network: brackets are for one network; pick one of the batch first.")
    bias, offset, slope = None, None, 1.0
    if isinstance(network, (ScalarLinear, ScalarReLU, ScalarAffine)):
        V, W = _column(network.v), _column(network.w).T
        bias = to_numpy(network.b) if isinstance(network, ScalarAffine) else None
        slope = 0.0 if isinstance(network, ScalarReLU) else 1.0
    elif isinstance(network, TwoLayerLinear):
        V, W = (to_numpy(weight) for weight in network.weights)
    elif isinstance(network, ReLU) and len(network.weights) == 2:
        V, W = (to_numpy(weight) for weight in network.weights)
        bias, offset = (None if b is None else to_numpy(b) for b in network.biases)
        slope = network.slope
    else:
        raise ValueError(
            f"network: a {type(network).__name__} is not two layers with a function of each hidden "
            "unit between them; its own spectrum is exact: net.hessian(x, y).spectrum()."
        )
    inputs, targets, known = _samples(network, data, loss, len(W))
    return TwoLayer(
        inputs=inputs,
        V=V.astype(np.float64),
        W=W.astype(np.float64),
        b=np.zeros(len(V)) if bias is None else bias.astype(np.float64),
        c=np.zeros(len(W)) if offset is None else offset.astype(np.float64),
        activation=Rectified(slope),
        loss=lambda predictions: pointwise(known, predictions, targets),
        moves_b=bias is not None,
        moves_c=offset is not None,
    )


def pointwise(loss: PointwiseLoss, predictions: Numbers, targets: Numbers) -> LossAt:
    """Return the derivatives of the mean of a pointwise loss over samples."""
    n = len(predictions)
    first, second = loss.first(predictions, targets) / n, loss.second(predictions, targets) / n
    coupled = bool(getattr(loss, "coupled", False))
    hessian = second if coupled else second[..., None] * np.eye(second.shape[-1])
    exact = isinstance(loss, (Squared, Huber))
    size = stable_norm(first, 1)
    if not exact:
        size = (
            size
            + stable_norm(hessian, (1, 2)) * (1 + np.abs(predictions).max(axis=1))
            + np.abs(first).max()
        )
    return LossAt(
        gradient=first,
        hessian=np.ascontiguousarray(hessian),
        noise=ULPS * UNIT * size,
        steepness=0.0 if exact else 2.0,
        targets=targets,
        shifts=coupled,
    )


def _samples(
    network: Network, data: Any, loss: Any, outputs: int
) -> tuple[Numbers, Numbers, PointwiseLoss]:
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise ValueError("data must be a pair (x, y) of samples for a network of this library.")
    known = as_loss(
        "mse" if loss is None else loss, coupled=isinstance(network, (TwoLayerLinear, ReLU))
    )
    x, y = data
    if getattr(known, "coupled", False):
        y = one_hot(y, 1, outputs, network.parameters())
    network.loss(x, y, known)  # tells of what does not fit
    arrays = [_column(np.asarray(to_numpy(a) if hasattr(a, "shape") else a)) for a in (x, y)]
    inputs, targets = (array.astype(np.float64) for array in arrays)
    return inputs, targets, known


def _column(array: Any) -> Numbers:
    numbers = to_numpy(array)
    return numbers[:, None] if numbers.ndim == 1 else numbers
