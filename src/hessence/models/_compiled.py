"""Products as one compiled function of the vector, for those who need thousands of them.

A product is traced once, as a list of PyTorch's basic operations. Whatever does not depend on the
vector is computed once and for all, and ``torch.compile`` compiles the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from hessence.models._products import Graph


class CompiledGraph(Graph):
    """A graph whose products are compiled when first asked for, one vector at a time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.count = graph.count
        self._products: dict[tuple[int, ...], Callable[..., Any]] = {}

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Multiply by a vector."""
        assert not batched
        key = tuple(chosen)
        if key not in self._products:
            zeros = [torch.zeros_like(direction) for direction in directions]
            traced = make_fx(lambda *parts: self._graph.multiply(parts, chosen))(*zeros)
            self._products[key] = torch.compile(fold(traced), dynamic=False)
        with torch.no_grad():
            return list(self._products[key](*directions))


def fold(traced: fx.GraphModule) -> fx.GraphModule:
    """Compute all that does not depend on the inputs, and keep it as constants."""
    known: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = getattr(traced, node.target)
            known[node] = value.detach() if isinstance(value, Tensor) else value
        elif node.op == "call_function" and all(n in known for n in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            with torch.no_grad():
                known[node] = node.target(*args, **kwargs)
    constants: dict[str, Any] = {}
    for node, value in known.items():
        if not known.keys() >= node.users.keys():
            name = f"constant{len(constants)}"
            constants[name] = value
            with traced.graph.inserting_before(node):
                node.replace_all_uses_with(traced.graph.create_node("get_attr", name))
    for node in reversed(known):
        traced.graph.erase_node(node)
    return fx.GraphModule(constants, traced.graph)
