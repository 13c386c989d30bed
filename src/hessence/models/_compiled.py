"""Products as one compiled function of the vector, for those who need thousands of them.

A product is traced once: what happens on the way to the vector's image is written down as a list of
PyTorch's basic operations, whatever does not depend on the vector is computed for good, and the
rest is compiled by ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from hessence.models._products import Graph


def compiled(build: Callable[[Any], Graph]) -> Callable[[Any], Graph]:
    """Return a function that builds a graph and compiles its products."""
    return lambda batch: CompiledGraph(build(batch))


class CompiledGraph(Graph):
    """A graph whose products are compiled when first asked for, one vector at a time."""

    takes_columns = False

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.count = graph.count
        self._products: dict[tuple[int, ...], Callable[..., Any]] = {}

    @property
    def plain(self) -> Graph:
        return self._graph

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Multiply by a vector."""
        assert not batched
        key = tuple(chosen)
        if key not in self._products:
            self._products[key] = self._compile(directions, chosen)
        with torch.no_grad():
            return list(self._products[key](*directions))

    def _compile(self, directions: Sequence[Tensor], chosen: Sequence[int]) -> Callable[..., Any]:
        def product(*parts: Tensor) -> list[Tensor]:
            return self._graph.multiply(parts, chosen)

        traced = make_fx(product)(*(torch.zeros_like(d) for d in directions))
        quick: Callable[..., Any] = torch.compile(fold(traced), dynamic=False)
        return quick


def fold(traced: fx.GraphModule) -> fx.GraphModule:
    """Compute all that does not depend on the inputs, and keep it as constants."""
    known: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = getattr(traced, node.target)
            known[node] = value.detach() if isinstance(value, Tensor) else value
        elif node.op == "call_function" and all(n in known for n in node.all_input_nodes):
            arguments = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            with torch.no_grad():
                known[node] = node.target(*arguments[0], **arguments[1])
    graph, root = fx.Graph(), torch.nn.Module()
    copies: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            name = f"constant{len(copies)}"
            value = known[node]
            if isinstance(value, Tensor):
                root.register_buffer(name, value, persistent=False)
            else:
                setattr(root, name, value)
            copies[node] = graph.get_attr(name)
        return copies[node]

    for node in traced.graph.nodes:
        if node.op == "output":
            graph.output(fx.map_arg(node.args[0], copy))
        elif node.op == "placeholder" or node not in known:
            copies[node] = graph.node_copy(node, copy)
    return fx.GraphModule(root, graph)
