"""Which tensors to differentiate by, and how they lie in one flat vector."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Parameters:
    """Tensors by name, copied from a model, in the order of ``model.parameters()``.

    Attributes
    ----------
    names : tuple of str
        Names as in ``model.named_parameters()``; tensors from elsewhere are called ``"tensor 0"``…
    leaves : tuple of Tensor
        Copies that require gradients. A tensor that is not the model's is itself.
    """

    names: tuple[str, ...]
    leaves: tuple[Tensor, ...]

    @classmethod
    def select(cls, model: nn.Module, params: Any) -> Parameters:
        """Choose parameters of a model.

        Parameters
        ----------
        model : torch.nn.Module
            The model.
        params : None, str, tensor, or sequence of strings and tensors
            Patterns of names, such as ``"blocks.*.attn.*"``: a pattern also takes all that is
            inside of what it matches, so ``"blocks.0"`` is a whole block. Or tensors: parameters of
            the model, or others that the loss depends on and that require gradients. By default
            all parameters that require gradients.
        """
        named = dict(model.named_parameters())
        if params is None:
            chosen = {name: p for name, p in named.items() if p.requires_grad}
            if not chosen:
                raise ValueError("model has no parameters that require gradients.")
        else:
            chosen = _chosen(named, params)
        tensors = tuple(chosen.values())
        _require_one_kind(tensors, tuple(chosen))
        leaves = tuple(
            t.detach().clone().requires_grad_() if name in named else t
            for name, t in chosen.items()
        )
        return cls(tuple(chosen), leaves)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(leaf.numel() for leaf in self.leaves)

    def block(self, chosen: Sequence[int]) -> Parameters:
        """Return some of the tensors, by index."""
        return Parameters(
            tuple(self.names[i] for i in chosen), tuple(self.leaves[i] for i in chosen)
        )

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Cut vectors (..., p) into tensors (..., *shape)."""
        parts = torch.split(flat, [leaf.numel() for leaf in self.leaves], dim=-1)
        lead = flat.shape[:-1]
        return tuple(
            part.reshape(*lead, *leaf.shape) for part, leaf in zip(parts, self.leaves, strict=True)
        )

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Make one vector (..., p) of tensors (..., *shape)."""
        lead = tensors[0].ndim - self.leaves[0].ndim
        return torch.cat([t.reshape(*t.shape[:lead], -1) for t in tensors], dim=-1)


def matching(names: Sequence[str], pattern: str) -> list[str]:
    """Return the names that a pattern matches, whole or up to a dot.

    Examples
    --------
    >>> matching(["a.0.weight", "a.1.weight", "b.weight"], "a.*")
    ['a.0.weight', 'a.1.weight']
    >>> matching(["a.0.weight", "a.1.weight", "b.weight"], "a.0")
    ['a.0.weight']
    """
    found = [n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, pattern + ".*")]
    if not found:
        close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
        raise ValueError(
            f"params: no parameter matches {pattern!r}; names are like {', '.join(close)}."
        )
    return found


def _chosen(named: dict[str, nn.Parameter], params: Any) -> dict[str, Tensor]:
    items = [params] if isinstance(params, (str, Tensor)) else list(params)
    if not items:
        raise ValueError("params must name at least one parameter, got none.")
    own = {id(p): name for name, p in named.items()}
    patterns = [item for item in items if isinstance(item, str)]
    matched = {name for pattern in patterns for name in matching(list(named), pattern)}
    chosen: dict[str, Tensor] = {name: p for name, p in named.items() if name in matched}
    for i, item in enumerate(items):
        if isinstance(item, str):
            continue
        if not isinstance(item, Tensor):
            raise TypeError(
                f"params must be name patterns or tensors, got {type(item).__name__}."
            )
        name = own.get(id(item), f"tensor {i}")
        if name not in named and not item.requires_grad:
            raise ValueError(
                f"params: tensor {i} is not a parameter of the model and does not require "
                "gradients, so the loss cannot be differentiated by it."
            )
        chosen[name] = item
    return chosen


def _require_one_kind(tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    for name, tensor in zip(names, tensors, strict=True):
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise ValueError(f"parameter {name!r} has no shape yet: call the model once first.")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"parameter {name!r} is {str(tensor.dtype).removeprefix('torch.')}; spectra need "
                "float32 or float64, for example model.float()."
            )
        if (tensor.dtype, tensor.device) != (tensors[0].dtype, tensors[0].device):
            raise ValueError(
                f"parameters must share one dtype and device, but {names[0]!r} is "
                f"{tensors[0].dtype} on {tensors[0].device} and {name!r} is {tensor.dtype} on "
                f"{tensor.device}."
            )
    if sum(tensor.numel() for tensor in tensors) == 0:
        raise ValueError("params must hold at least one number.")
