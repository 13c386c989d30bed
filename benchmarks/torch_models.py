"""Any PyTorch model: products, eigenvalues and densities beside those of curvlinops and PyHessian.

A classifier on one thread, a GPT on two. Curvlinops cannot differentiate fused attention, and gets
the same GPT with attention spelled out.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hessence as hs
from benchmarks import exactness
from benchmarks.models import digits_classifier, small_gpt
from benchmarks.timing import Comparison, bursts, compare, medians

PEERS = {
    "curvlinops": "curvlinops-for-pytorch",
    "pyhessian": "pyhessian",
    "sklearn": "scikit-learn",
}

EARLY, MIDDLE, LATE = 150, 300, 500
"""Steps that the classifier is trained for: its loss is then 0.03, 0.007 and 0.002. The later, the
closer to zero is the lower end of the spectrum, and the more products take those who look for it.
"""

BURST = 5
"""How many products follow one another in a repeat, as they do in Lanczos' iteration."""


@dataclass(frozen=True)
class Subject:
    """A model as we take it, and as others can take it."""

    name: str
    model: nn.Module
    explicit: nn.Module
    data: tuple[Tensor, Tensor]
    loss: nn.Module

    def ours(self, **options: Any) -> Any:
        """Return our operator."""
        return hs.hessian(self.model, self.data, self.loss, **options)

    def curvlinops(self) -> Any:
        """Return curvlinops' operator, with the checks that it makes by default, and a counter."""
        from curvlinops import HessianLinearOperator

        class Counted(HessianLinearOperator):  # type: ignore[misc]
            products = 0

            def _matmat(self, columns: Any) -> Any:
                self.products += 1
                return super()._matmat(columns)

        parameters = list(self.explicit.parameters())
        return Counted(self.explicit, self.loss, parameters, [self.data])

    def gradient(self) -> tuple[Tensor, ...]:
        """Return the gradient."""
        x, y = self.data
        return torch.autograd.grad(self.loss(self.model(x), y), list(self.model.parameters()))


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    missing = [package for name, package in PEERS.items() if find_spec(name) is None]
    if missing:
        sys.exit(f"benchmarks: torch_models compares with {', '.join(missing)}; try `make bench`.")
    with threads(1):
        mlp = _classifier(LATE)
        yield from _products(mlp, of_gradient=1.7, of_curvlinops=None, repeats=15)
        yield _product_of_pyhessian(mlp)
        yield from _top_ten(mlp)
        for trained in (LATE, MIDDLE, EARLY):
            measured = _density(_classifier(trained), 100, 1 / 8, repeats=3)
            quality = exactness.of_densities(trained, steps=100)
            yield replace(measured, note=f"{measured.note}; {quality}")
        for tol, products in ((1e-4, 10), (1e-2, 2)):
            yield _monitor(tol, products)
        yield _compiled(mlp)
    with threads(2):
        fused, explicit, data = small_gpt()
        gpt = Subject("GPT, p = 940 800", fused, explicit, data, nn.CrossEntropyLoss())
        for measured in _products(gpt, of_gradient=None, of_curvlinops=1 / 2, repeats=3):
            yield (
                measured
                if measured.most is None
                else replace(measured, note=exactness.of_products(gpt))
            )
        yield _sharpness(gpt)
        yield _density(gpt, 64, 1 / 2.5, repeats=1)
        yield _compiled(gpt)


def _classifier(trained: int) -> Subject:
    model, data = digits_classifier(trained)
    name = f"tanh MLP, p = 8970, {trained} steps old"
    return Subject(name, model, model, data, nn.CrossEntropyLoss())


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _products(
    subject: Subject, *, of_gradient: float | None, of_curvlinops: float | None, repeats: int
) -> Iterator[Comparison]:
    H, C = subject.ours(), subject.curvlinops()
    v = torch.randn(H.shape[0], dtype=H.dtype)
    functions = [bursts(f, BURST) for f in (lambda: H @ v, subject.gradient, lambda: C @ v)]
    for function in functions:
        function()
    ours, gradient, theirs = (s / BURST for s in medians(functions, repeats))
    task = f"{subject.name}: one product"
    yield Comparison(task, "one gradient", ours, gradient, of_gradient)
    yield Comparison(task, "curvlinops", ours, theirs, of_curvlinops)


def _product_of_pyhessian(subject: Subject) -> Comparison:
    from pyhessian.utils import hessian_vector_product

    H, P = subject.ours(), _pyhessian(subject)
    v = torch.randn(H.shape[0], dtype=H.dtype)
    parts = list(H.split(v).values())
    return compare(
        f"{subject.name}: one product",
        lambda: H @ v,
        "PyHessian",
        lambda: hessian_vector_product(P.gradsH, P.params, parts),
        burst=BURST,
    )


def _top_ten(subject: Subject) -> Iterator[Comparison]:
    values, _ = _eigenpairs(subject, 10, 1e-6)()
    # eigsh's tolerance is relative to each eigenvalue, ours to the largest: so that of the least.
    tol = 1e-6 * values[-1] / values[0]
    ours, theirs = _eigenpairs(subject, 10, tol), _eigsh(subject, 10, 1e-6)
    # Without the search for copies that were missed, which eigsh does not make.
    alike = _eigenpairs(subject, 10, tol, confidence=0.0)
    (mine, products), (_, fewer), (other, their_products) = ours(), alike(), theirs()
    seconds, fewer_seconds, their_seconds = medians([ours, alike, theirs], repeats=9)
    gap = np.abs(mine / other - 1).max()
    note = f"{products} beside {their_products} products, {gap:.0e} apart"
    task = f"{subject.name}: ten eigenvalues, each to 1e-6"
    yield Comparison(task, "curvlinops + eigsh", seconds, their_seconds, 1 / 3, note)
    note = f"{fewer} beside {their_products} products"
    unsearched = f"{task}, no copies"
    yield Comparison(unsearched, "curvlinops + eigsh", fewer_seconds, their_seconds, None, note)
    began = time.perf_counter()
    powers = _power_iteration(subject, 10)
    slow, off = time.perf_counter() - began, np.abs(powers / mine - 1).max()
    yield Comparison(task, "PyHessian", seconds, slow, note=f"theirs {off:.1%} off")


def _sharpness(subject: Subject) -> Comparison:
    ours, theirs = _eigenpairs(subject, 1, 1e-3), _eigsh(subject, 1, 1e-3)
    (mine, products), (other, their_products) = ours(), theirs()
    seconds, their_seconds = medians([ours, theirs], repeats=3)
    gap = abs(mine[0] / other[0] - 1)
    note = f"{products} beside {their_products} products, {gap:.0e} apart"
    task = f"{subject.name}: largest eigenvalue to 1e-3"
    return Comparison(task, "curvlinops + eigsh", seconds, their_seconds, 1 / 3, note)


def _density(subject: Subject, steps: int, most: float, repeats: int) -> Comparison:
    from curvlinops.papyan2020traces.spectrum import lanczos_approximate_spectrum

    products = []

    def ours() -> Any:
        return hs.density(subject.ours(), probes=1, steps=steps)

    def theirs() -> None:
        C = subject.curvlinops()
        lanczos_approximate_spectrum(C, steps)
        products.append(C.products)

    seconds, their_seconds = medians([ours, theirs], repeats)
    task = f"{subject.name}: density, {steps} steps"
    note = f"{steps} beside {sum(products) // repeats} products"
    return Comparison(task, "curvlinops", seconds, their_seconds, most, note)


def _monitor(tol: float, most: int) -> Comparison:
    """Measure the sharpness at every step of gradient descent, 50 of them."""
    subject = _classifier(EARLY)
    model = copy.deepcopy(subject.model)
    subject = Subject(subject.name, model, model, subject.data, subject.loss)
    monitor = hs.Monitor(model, subject.data, subject.loss, ggn=False, tol=tol)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    mine, scratch, products, apart = [], [], [], []
    for step in range(50):
        began = time.perf_counter()
        record = monitor.measure(step)
        halfway = time.perf_counter()
        (truth,), count = _eigsh(subject, 1, tol)()
        scratch.append(time.perf_counter() - halfway)
        mine.append(halfway - began)
        products.append((record.products, count))
        apart.append(abs(record.sharpness / truth - 1))
        optimiser.zero_grad()
        subject.loss(model(subject.data[0]), subject.data[1]).backward()
        optimiser.step()
    ours, theirs = np.mean(products, axis=0)
    verdict = "met" if ours <= most else "MISSED"
    note = (
        f"{ours:.1f} beside {theirs:.1f} products a step, at most {most}: {verdict}; "
        f"{max(apart):.0e} apart"
    )
    task = f"{subject.name}: sharpness at a step, to {tol:g}"
    return Comparison(task, "curvlinops + eigsh", np.mean(mine), np.mean(scratch), note=note)


def _compiled(subject: Subject) -> Comparison:
    plain, compiled = subject.ours(), subject.ours(compile=True)
    v = torch.randn(plain.shape[0], dtype=plain.dtype)
    plain @ v
    began = time.perf_counter()
    compiled @ v
    effort = time.perf_counter() - began
    measured = compare(
        f"{subject.name}: one product, compiled",
        lambda: compiled @ v,
        "one product",
        lambda: plain @ v,
    )
    saved = measured.reference_seconds - measured.seconds
    pays = f"pays after {effort / saved:,.0f} products" if saved > 0 else "does not pay"
    return replace(measured, note=pays)


def _eigenpairs(
    subject: Subject, k: int, tol: float, **options: Any
) -> Callable[[], tuple[Any, int]]:
    def find() -> tuple[Any, int]:
        pairs = hs.eigenpairs(subject.ours(), k=k, tol=tol, **options)
        return pairs.eigenvalues.numpy(), pairs.products

    return find


def _eigsh(subject: Subject, k: int, tol: float) -> Callable[[], tuple[Any, int]]:
    from scipy.sparse.linalg import eigsh

    def find() -> tuple[Any, int]:
        C = subject.curvlinops()
        values = eigsh(C.to_scipy(), k=k, which="LA", tol=tol)[0]
        return np.sort(values)[::-1], C.products

    return find


def _power_iteration(subject: Subject, k: int) -> Any:
    torch.manual_seed(0)
    with _default_dtype(next(subject.model.parameters()).dtype):
        values, _ = _pyhessian(subject).eigenvalues(top_n=k)
    return np.sort(values)[::-1]


def _pyhessian(subject: Subject) -> Any:
    from pyhessian import hessian

    with warnings.catch_warnings():
        # It calls backward(create_graph=True), which PyTorch warns of.
        warnings.simplefilter("ignore")
        return hessian(copy.deepcopy(subject.explicit), subject.loss, subject.data, cuda=False)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """PyHessian makes its vectors in PyTorch's default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
