"""What is written out by hand, or chosen by a rule, each alone beside what PyTorch does by itself.

Whatever does not pay at least 1.3 times on a real model, and is not needed for right derivatives,
goes. Measured and deleted, as the speed of a product with it over one without: second derivatives
of softmax, log-softmax, cross-entropy, attention, layer norm and activations 1.12 and 1.16 (GPT,
float32 and float64), 1.13 and 1.11 (ConvNeXt), 1.09 and 1.07 (convolutions with SiLU), all of them
together; memory lent to the R-operator from product to product 0.96 to 1.12; chunks cut so that
their tensors fit into the cache 0.92 to 1.09. Compiled products are measured in ``torch_models``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hessence as hs
from benchmarks.models import digits_classifier, small_gpt
from benchmarks.timing import Comparison, compare
from benchmarks.torch_models import threads
from hessence.models import _exact_kernels as exact_kernels
from hessence.models import _products as products

COLUMNS = 8
"""How many columns are multiplied."""


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    with threads(1):
        for dtype in (torch.float64, torch.float32):
            yield from _r_operator(dtype)
        yield from _layer_norm()
        yield from _columns()


class _Wrapped(nn.Module):
    """A chain of layers that is not recognised as one, and so left to automatic differentiation."""

    def __init__(self, chain: nn.Module) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor) -> Any:
        """Apply the chain."""
        return self.chain(x)


def _r_operator(dtype: torch.dtype) -> Iterator[Comparison]:
    """Compare Pearlmutter's R-operator with two backward passes."""
    name, loss = f"tanh MLP, {str(dtype)[6:]}", nn.CrossEntropyLoss()
    model, (x, y) = digits_classifier(500)
    model, x = model.to(dtype), x.to(dtype)
    for kind, operator in (("Hessian", hs.hessian), ("Gauss–Newton", hs.ggn)):
        written, recorded = (operator(m, (x, y), loss) for m in (model, _Wrapped(model)))
        v = torch.randn(written.shape[0], dtype=dtype)
        ours, theirs = _products(written, v), _products(recorded, v)
        yield compare(f"{name}: {kind} product", ours, "two backward passes", theirs, burst=5)

    def density(subject: nn.Module) -> Callable[[], Any]:
        return lambda: hs.density(hs.hessian(subject, (x, y), loss), probes=1, steps=100)

    ours, theirs = density(model), density(_Wrapped(model))
    yield compare(f"{name}: density, 100 steps", ours, "two backward passes", theirs, repeats=3)


def _layer_norm() -> Iterator[Comparison]:
    """Compare layer norms in elementary steps, which are right in every mode, with PyTorch's."""
    model, _, data = small_gpt()
    own = {F.layer_norm: F.layer_norm, torch.layer_norm: torch.layer_norm}
    elementary = hs.hessian(model, data, nn.CrossEntropyLoss())
    v = torch.randn(elementary.shape[0])
    _ = elementary @ v
    with _replaced(own):
        native = hs.hessian(model, data, nn.CrossEntropyLoss())
        _ = native @ v
    ours, theirs = _products(elementary, v), _products(native, v)
    yield compare("GPT: product, elementary layer norms", ours, "fused ones", theirs, repeats=5)


def _columns() -> Iterator[Comparison]:
    """Compare several columns at once with one by one, for a small graph and for a large one."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3), nn.Tanh(), nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    for samples in (8, 1024):
        data = torch.randn(samples, 1, 8, 8), torch.randint(10, (samples,))
        H = hs.hessian(model, data, nn.CrossEntropyLoss())
        V = torch.randn(H.shape[0], COLUMNS)

        def limited(limit: float, H: Any = H, V: Tensor = V) -> Any:
            before, products.AT_ONCE_BYTES = products.AT_ONCE_BYTES, limit
            try:
                return H @ V
            finally:
                products.AT_ONCE_BYTES = before

        task = f"convolutions, {samples} samples: {COLUMNS} columns at once"
        yield compare(task, lambda f=limited: f(2.0**40), "one by one", lambda f=limited: f(0.0))


def _products(operator: Any, v: Tensor) -> Callable[[], Any]:
    return lambda: operator @ v


@contextmanager
def _replaced(functions: dict[Any, Any]) -> Iterator[None]:
    """Call other functions in place of PyTorch's for a while."""
    before = dict(exact_kernels.REPLACEMENTS)
    exact_kernels.REPLACEMENTS.update(functions)
    try:
        yield
    finally:
        exact_kernels.REPLACEMENTS.update(before)
