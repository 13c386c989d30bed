"""How a model uses its parameters, read off by watching it run.

A linear layer, a convolution and an embedding make z = W h of what they take, at every position of
every sample; a bias is added to z, and a normalisation multiplies by its weight. So all derivatives
in these parameters follow from h and from derivatives in z. To have the latter, a zero that can be
differentiated by is added to every z: what comes after may then write to z, as activations in place
do.

Whether a parameter is used in no other way, the graph that PyTorch records tells: it has one edge
to the parameter for each use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hessence.models._model_copy import ModelCopy
from hessence.models.model_layers import graph_uses


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer.

    Attributes
    ----------
    kind : str
        ``"linear"``, ``"convolution"``, ``"transposed convolution"``, ``"embedding"`` or
        ``"normalisation"``.
    weight, bias : int or None
        Which of the leaves they are; None if they are not differentiated by.
    taken : Tensor
        What the layer took: h, the patches' image, the indices; or, for a normalisation, what its
        weight multiplies.
    shift : Tensor
        The zero that was added to what the layer made.
    moves : bool
        Whether what the layer took depends on the leaves.
    options : dict
        The further arguments of the call.
    """

    kind: str
    weight: int | None
    bias: int | None
    taken: Tensor
    shift: Tensor
    moves: bool
    options: Mapping[str, Any]


def watched(
    copy: ModelCopy, function: Callable[..., Any], *arguments: Any
) -> tuple[Any, list[Call]]:
    """Return what a run of the copy gives, and the calls of layers in it."""
    watch = _Watch(copy.parameters.leaves)

    def run(model: Any, *given: Any) -> Any:
        with watch:
            return function(model, *given)

    return copy.run(run, *arguments), watch.calls


def used_otherwise(result: Tensor, leaves: Sequence[Tensor], calls: Sequence[Call]) -> list[int]:
    """Return which leaves a result depends on by more than the calls."""
    edges = (
        {id(result): 1}
        if result.grad_fn is None
        else {
            id(node.variable): count
            for node, count in graph_uses([result]).items()
            if hasattr(node, "variable")
        }
    )
    # A call whose result is detached or not used has no edges.
    reached = [call for call in calls if id(call.shift) in edges]
    known = Counter(i for call in reached for i in (call.weight, call.bias) if i is not None)
    return [i for i, leaf in enumerate(leaves) if edges.get(id(leaf), 0) > known[i]]


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Notes the calls of layers that have one of the leaves for weight or bias."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self._places = {id(leaf): i for i, leaf in enumerate(leaves)}
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func not in KINDS:
            return func(*args, **named)
        kind, names = KINDS[func]
        options = dict(zip(names, args, strict=False)) | named
        weight, bias = (self._places.get(id(options.get(name))) for name in ("weight", "bias"))
        made = func(*args, **named)
        if (weight is None and bias is None) or _unknown(kind, options):
            return made
        taken = options.pop("input")
        moves = taken.requires_grad
        if kind == "normalisation":
            plain = {n: v for n, v in options.items() if n not in ("weight", "bias")}
            with torch.no_grad():
                taken = func(taken, **plain)
        shift = torch.zeros_like(made, requires_grad=True)
        self.calls.append(Call(kind, weight, bias, taken.detach(), shift, moves, options))
        return made + shift


def _unknown(kind: str, options: Mapping[str, Any]) -> bool:
    """Whether a layer has another formula.

    It may normalise over the batch, rescale words, or make one number of each vector.
    """
    if kind == "linear" and options["weight"].ndim == 1:
        return True
    return bool(options.get("training")) or options.get("max_norm") is not None


_CONVOLUTION = "convolution", (
    "input", "weight", "bias", "stride", "padding", "dilation", "groups",
)  # fmt: skip
_TRANSPOSED = "transposed convolution", (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip
_LAYER_NORM = "normalisation", ("input", "normalized_shape", "weight", "bias", "eps")

KINDS: dict[Callable[..., Any], tuple[str, tuple[str, ...]]] = {
    F.linear: ("linear", ("input", "weight", "bias")),
    F.conv1d: _CONVOLUTION,
    F.conv2d: _CONVOLUTION,
    F.conv3d: _CONVOLUTION,
    F.conv_transpose1d: _TRANSPOSED,
    F.conv_transpose2d: _TRANSPOSED,
    F.conv_transpose3d: _TRANSPOSED,
    F.embedding: (
        "embedding",
        ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
    ),
    F.layer_norm: _LAYER_NORM,
    torch.layer_norm: _LAYER_NORM,
    F.rms_norm: ("normalisation", ("input", "normalized_shape", "weight", "eps")),
    F.group_norm: ("normalisation", ("input", "num_groups", "weight", "bias", "eps")),
    F.batch_norm: (
        "normalisation",
        (
            "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
        ),
    ),
}  # fmt: skip
"""The functions that layers call, and what their arguments are called."""
