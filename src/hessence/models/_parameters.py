"""Which tensors to differentiate by, and how they lie in one flat vector."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hessence._common.arrays import dtype_name


@dataclass(frozen=True, eq=False)
class Parameters:
    """Tensors by name, in the order of ``model.parameters()``.

    Attributes
    ----------
    names : tuple of str
        Names as in ``model.named_parameters()``; tensors from elsewhere are called ``"tensor 0"``…
    leaves : tuple of Tensor
        The tensors.
    aliases : dict
        For tensors that a model has in several places: further names, with the one in `names`.
    outside : frozenset of str
        The names of tensors that are not the model's.
    """

    names: tuple[str, ...]
    leaves: tuple[Tensor, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()

    @property
    def foreign(self) -> tuple[Tensor, ...]:
        """The tensors that are not the model's."""
        pairs = zip(self.names, self.leaves, strict=True)
        return tuple(leaf for name, leaf in pairs if name in self.outside)

    @classmethod
    def select(cls, model: nn.Module, params: Any) -> Parameters:
        """Choose parameters of a model.

        Parameters
        ----------
        model : torch.nn.Module
            The model.
        params : None, str, tensor, module, or sequence of them
            Patterns of names, such as ``"blocks.*.attn.*"``: a pattern also takes all that is
            inside what it matches, so ``"blocks.0"`` is a whole block. Or parts of the model, or
            tensors: its parameters, or others that the loss depends on and that require gradients.
            By default all parameters that require gradients. The model's own come first, in its
            order.
        """
        named = dict(model.named_parameters())
        for name, parameter in named.items():
            if isinstance(parameter, nn.parameter.UninitializedTensorMixin):
                raise ValueError(f"parameter {name!r} has no shape yet: call the model once first.")
        own = {id(p): name for name, p in named.items()}
        everywhere = model.named_parameters(remove_duplicate=False)
        aliases = {name: own[id(p)] for name, p in everywhere if name not in named}
        if params is None:
            chosen: dict[str, Tensor] = {name: p for name, p in named.items() if p.requires_grad}
            if not chosen:
                raise ValueError("model has no parameters that require gradients.")
        else:
            chosen = _chosen(named, aliases, params)
        tensors = tuple(chosen.values())
        _require_one_kind(tensors, tuple(chosen))
        return cls(tuple(chosen), tensors, aliases, frozenset(chosen.keys() - named.keys()))

    @cached_property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shapes of the tensors."""
        return tuple(leaf.shape for leaf in self.leaves)

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each of them has."""
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(self.sizes)

    def restricted(self, chosen: Sequence[int]) -> Parameters:
        """Return some of the tensors, by index."""
        return Parameters(
            tuple(self.names[i] for i in chosen),
            tuple(self.leaves[i] for i in chosen),
            self.aliases,
            self.outside,
        )

    def indices(self, patterns: str | Sequence[str], argument: str = "params") -> list[int]:
        """Return which of the tensors have a name that one of the patterns matches.

        Messages about the patterns name the argument that they come from.
        """
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        if not wanted or not all(isinstance(item, str) for item in wanted):
            raise TypeError(f"{argument} must be name patterns, at least one, got {patterns!r}.")
        found = _matched(self.names, self.aliases, wanted, argument)
        return [i for i, name in enumerate(self.names) if name in found]

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Cut vectors (..., p) into tensors (..., *shape)."""
        parts = flat.split_with_sizes(self.sizes, dim=-1)
        lead = flat.shape[:-1]
        return tuple(
            part.reshape(lead + shape) for part, shape in zip(parts, self.shapes, strict=True)
        )

    def add(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        """Add tensors (..., *shape) to vectors (..., p), in place."""
        for own, tensor in zip(self.split(flat), tensors, strict=True):
            own += tensor

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Make one vector (..., p) of tensors (..., *shape)."""
        lead = tensors[0].ndim - self.leaves[0].ndim
        return torch.cat([t.reshape((*t.shape[:lead], -1)) for t in tensors], dim=-1)


def matching(names: Sequence[str], pattern: str, argument: str = "params") -> list[str]:
    """Return the names that a pattern matches, whole or up to a dot.

    Examples
    --------
    >>> matching(["a.0.weight", "a.1.weight", "b.weight"], "a.*")
    ['a.0.weight', 'a.1.weight']
    >>> matching(["a.0.weight", "a.1.weight", "b.weight"], "a.0")
    ['a.0.weight']
    """
    # A name may hold brackets, which are special in a pattern; it then stands for itself alone.
    found = [n for n in names if n == pattern or n.startswith(f"{pattern}.")]
    found = found or [n for n in names if any(fnmatchcase(n, p) for p in (pattern, f"{pattern}.*"))]
    if not found:
        known = list(dict.fromkeys([*(name.partition(".")[0] for name in names), *names]))
        close = difflib.get_close_matches(pattern, known, n=3, cutoff=0.0)
        others = " and others" if len(close) < len(known) else ""
        raise ValueError(
            f"{argument}: no parameter matches {pattern!r}; there are {', '.join(close)}{others}."
        )
    return found


def listed(params: Any, own: Mapping[int, str]) -> list[str | Tensor]:
    """Return patterns and tensors as a list, with the parameters of modules in their place."""
    if isinstance(params, (str, Tensor)):
        return [params]
    if isinstance(params, nn.Module):
        inner = list(params.parameters())
        if not {id(parameter) for parameter in inner} <= own.keys():
            kind = type(params).__name__
            raise ValueError(f"params: a {kind} was given that is not the model's.")
        return inner
    if not isinstance(params, Iterable):
        raise TypeError(f"params must be name patterns or tensors, got {type(params).__name__}.")
    return [item for part in params for item in listed(part, own)]


def _matched(
    names: Sequence[str],
    aliases: Mapping[str, str],
    patterns: Sequence[str],
    argument: str = "params",
) -> set[str]:
    """Return the names that patterns match, by any name of the same tensor."""
    known = [*names, *(alias for alias, name in aliases.items() if name in names)]
    found = {name for pattern in patterns for name in matching(known, pattern, argument)}
    return {aliases.get(name, name) for name in found}


def _chosen(
    named: Mapping[str, nn.Parameter], aliases: Mapping[str, str], params: Any
) -> dict[str, Tensor]:
    own = {id(p): name for name, p in named.items()}
    items = listed(params, own)
    if not items:
        raise ValueError("params must name at least one parameter, got none.")
    wanted = _matched(list(named), aliases, [item for item in items if isinstance(item, str)])
    others: dict[str, Tensor] = {}
    for i, item in enumerate(items):
        if isinstance(item, str):
            continue
        if id(item) in own:
            wanted.add(own[id(item)])
        elif item.requires_grad:
            if not any(item is other for other in others.values()):
                others[f"tensor {i}"] = item
        else:
            raise ValueError(
                f"params: tensor {i} is not a parameter of the model and does not require "
                "gradients, so the loss cannot be differentiated by it."
            )
    return {name: p for name, p in named.items() if name in wanted} | others


def _require_one_kind(tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"parameter {name!r} is {dtype_name(tensor)}; spectra need "
                "float32 or float64, for example model.float()."
            )
        if tensor.device.type == "meta":
            raise ValueError(f"parameter {name!r} is on the meta device: it has no values.")
        if (tensor.dtype, tensor.device) != (tensors[0].dtype, tensors[0].device):
            raise ValueError(
                f"parameters must share one dtype and device, but {names[0]!r} is "
                f"{tensors[0].dtype} on {tensors[0].device} and {name!r} is {tensor.dtype} on "
                f"{tensor.device}."
            )
    if sum(tensor.numel() for tensor in tensors) == 0:
        raise ValueError("params must hold at least one number.")


def length(vectors: Tensor, dim: int | None = None) -> Tensor:
    """Return norms in double precision: in single, squares of small numbers are zero."""
    return vectors.norm(dim=dim, dtype=torch.float64)


def irregular(like: Tensor) -> Tensor:
    """Return numbers between −1 and 1, shaped like others, of which no two are the same."""
    count = torch.arange(1, like.numel() + 1, device=like.device)
    return count.to(like.dtype).sin().reshape(like.shape)
