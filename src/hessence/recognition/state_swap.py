"""A model's parameters and buffers, put aside for others while something runs.

PyTorch's own ``functional_call`` puts back a copy, not the parameter, where a module is registered
under two names. So the places that hold tensors are swapped here, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class _Place:
    """Where a module holds a tensor, and the first of the names that the tensor has."""

    module: nn.Module
    kind: str
    attribute: str
    name: str

    @property
    def home(self) -> dict[str, Tensor]:
        """The module's dictionary that the tensor is in."""
        home: dict[str, Tensor] = getattr(self.module, self.kind)
        return home


class StateSwap:
    """All places of a model that hold a parameter or a buffer, as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._places = tuple(_places(model))

    @contextmanager
    def hold(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Put tensors into their places by name, and the model's own back afterwards."""
        places = self._places
        if [(p.module, p.kind, p.attribute) for p in _places(self._model)] != [
            (p.module, p.kind, p.attribute) for p in places
        ]:
            raise ValueError(
                "model has other layers or parameters than when this was made: make it anew."
            )
        own = [place.home[place.attribute] for place in places]
        try:
            for place in places:
                place.home[place.attribute] = tensors[place.name]
            yield
        finally:
            for place, tensor in zip(places, own, strict=True):
                place.home[place.attribute] = tensor


def _places(model: nn.Module) -> Iterator[_Place]:
    """Go through them in the order of ``named_parameters``, and through each module once."""
    names: dict[int, str] = {}
    for prefix, module in model.named_modules():
        for kind in ("_parameters", "_buffers"):
            for attribute, tensor in getattr(module, kind).items():
                if tensor is not None:
                    full = f"{prefix}.{attribute}" if prefix else attribute
                    yield _Place(module, kind, attribute, names.setdefault(id(tensor), full))
