"""The library at work: every network once, checked against autodiff, and some pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import hessence as hs
from hessence._common.files import write_atomically
from hessence.papers.demo_pictures import model_pictures, network_pictures
from hessence.papers.page import Picture, Table, page

BRACKETED = (10, 100_000, 200)
"""Inputs, hidden units and samples of the network whose eigenvalues are bracketed."""

AUTODIFF_LIMIT = 400
"""The largest number of parameters for which the demo builds the Hessian by autodiff."""

TITLE = "Hessence: exact Hessian spectra"
LEAD = (
    "Every eigenvalue and eigenvector of the loss Hessian, from closed forms, with a certificate "
    "for each; and for any other model, estimates with error bars."
)


@dataclass(frozen=True)
class Row:
    """One network of the demo and how its spectrum fared."""

    network: str
    parameters: int
    method: str
    seconds: float
    autodiff_deviation: float | None
    residual: float
    trace_defect: float | None
    norm_defect: float | None


@dataclass(frozen=True)
class Bracketed:
    """A network too large for any dense solver, with a proved interval for every eigenvalue."""

    network: str
    parameters: int
    seconds: float
    median_width: float
    sharpness_width: float
    negative: int
    flat: int
    index_seconds: float

    @property
    def said(self) -> str:
        """The headline."""
        return (
            f"{self.network}: {self.parameters:,} eigenvalues bracketed in {self.seconds:.1f} s, "
            f"median width {self.median_width:.0e} ‖H‖; exactly {self.negative:,} are negative and "
            f"{self.flat} zero to rounding, in {self.index_seconds:.1f} s"
        )

    def table(self) -> Table:
        """Lay it out for people."""
        headings = ("network", "parameters", "time", "median width", "of the sharpness", "negative",
                    "flat", "time")  # fmt: skip
        row = (
            self.network, f"{self.parameters:,}", f"{self.seconds:.1f} s",
            _share(self.median_width), _share(self.sharpness_width), f"{self.negative:,}",
            f"{self.flat:,}", f"{self.index_seconds:.1f} s",
        )  # fmt: skip
        return Table(headings, [row], numeric=frozenset(range(1, 8)))


def run(directory: Path, say: Callable[[str], None]) -> list[Row]:
    """Run the demo, write its pictures and its page to a folder, and return the table."""
    rows = []
    for name, net, x, y in _instances():
        rows.append(_measure(name, net, x, y))
        say(f"  {name}: {rows[-1].parameters:,} eigenvalues")
    for name, operator in _models():
        rows.append(_measure_model(name, operator))
        say(f"  {name}: {rows[-1].parameters:,} eigenvalues")
    bracketed = _bracketed()
    say(f"  {bracketed.said}")
    pictures = [*network_pictures(), *model_pictures()]
    for picture in pictures:
        write_atomically(directory / f"{picture.name}.png", picture.to_png())
    sections: list[tuple[str, Table | Picture]] = [
        ("A million eigenvalues in brackets, and their exact signs", bracketed.table()),
        ("Spectra", table(rows)),
    ]
    sections += [(picture.title, picture) for picture in pictures]
    write_atomically(directory / "index.html", page(TITLE, LEAD, sections))
    return rows


def table(rows: list[Row]) -> Table:
    """Lay the rows out for people."""
    headings = ("network", "parameters", "method", "time", "off autodiff")
    certificate = ("residual", "trace", "squared norm")
    cells = [
        (
            row.network,
            f"{row.parameters:,}",
            row.method,
            f"{row.seconds * 1e3:.1f} ms",
            *map(
                _share,
                (row.autodiff_deviation, row.residual, row.trace_defect, row.norm_defect),
            ),
        )
        for row in rows
    ]
    return Table(headings + certificate, cells, numeric=frozenset({1, 3, 4, 5, 6, 7}))


def as_records(rows: list[Row]) -> list[dict[str, Any]]:
    """Return the rows for machines."""
    return [asdict(row) for row in rows]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0e}"


def _bracketed() -> Bracketed:
    """Bracket all eigenvalues of a wide tanh network, and count the negative ones exactly."""
    import torch
    from torch import nn

    inputs, width, samples = BRACKETED
    torch.manual_seed(1)
    layers = nn.Linear(inputs, width, bias=False), nn.Tanh(), nn.Linear(width, 1, bias=False)
    model = nn.Sequential(*layers).double()
    data = torch.randn(samples, inputs).double(), torch.randn(samples, 1).double()
    began = time.perf_counter()
    found = hs.brackets(model, data, nn.MSELoss())
    bracketed = time.perf_counter()
    inertia = found.inertia()
    counted = time.perf_counter()
    norm = max(abs(found.upper[0]), abs(found.lower[-1]))
    return Bracketed(
        f"tanh {inputs}-{width}-1",
        len(found),
        bracketed - began,
        float(np.median(found.width) / norm),
        float(found.width[0] / norm),
        int(inertia.negative),
        int(inertia.flat),
        counted - bracketed,
    )


def _instances() -> Iterator[tuple[str, Any, Any, Any]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y = np.abs(x) + 0.1 * rng.normal(size=200)

    def weights(count: int, *shape: int) -> list[Any]:
        return [rng.normal(size=shape) / shape[-1] ** 0.5 for _ in range(count)]

    yield "ScalarLinear", hs.ScalarLinear(*weights(2, 100)), x, y
    yield "ScalarReLU", hs.ScalarReLU(*weights(2, 100)), x, y
    yield "ScalarAffine", hs.ScalarAffine(*weights(3, 100)), x, y
    v, b = np.linalg.qr(rng.normal(size=(100, 2)))[0].T
    signs, labels = np.tile([1.0, -1.0], 50), np.tile([1.0, 1.0, -1.0, -1.0], 25)
    yield "ScalarAffine, as in the paper", hs.ScalarAffine(weights(1, 100)[0], v, b), signs, labels
    inputs, targets = rng.normal(size=(200, 6)), rng.normal(size=(200, 6))
    white = np.linalg.qr(inputs)[0] * 200**0.5
    yield "DecoupledInputs, correlated", hs.DecoupledInputs(*weights(2, 6, 20)), inputs, y
    yield "DecoupledInputs, decorrelated", hs.DecoupledInputs(*weights(2, 6, 20)), white, y
    yield "diagonal linear network", hs.DecoupledInputs(*weights(2, 6, 1)), inputs, y
    yield "DecoupledOutputs", hs.DecoupledOutputs(*weights(2, 6, 20)), x, targets
    target = rng.normal(size=(200, 2))
    narrow = hs.init.mup((6, 20, 2), rng)
    yield "TwoLayerLinear 6-20-2", hs.TwoLayerLinear(*narrow.weights), inputs, target
    residual = hs.ResidualLinear(*weights(1, 20, 6), *weights(1, 6, 20))
    yield "ResidualLinear 6-20-6", residual, inputs, targets
    aligned = hs.DeepLinear.balanced((6, 7, 8, 6), np.linspace(0.5, 1.5, 6), rng)
    left, singular, right = np.linalg.svd(aligned.product)
    yield "DeepLinear 6-7-8-6, aligned", aligned, white, white @ (left * singular**0.5 @ right).T
    yield "DeepLinear 6-7-8-6, solved", aligned, white, aligned(white)
    yield "DeepLinear 6-10-10-2", hs.init.standard((6, 10, 10, 2), rng), inputs, target
    few, few_targets = inputs[:6, :2], target[:6]
    relu: hs.ReLU = hs.TwoLayerReLU(rng.normal(size=(60, 2)), rng.normal(size=(2, 60)))
    yield "TwoLayerReLU 2-60-2", relu, few, few_targets
    shapes = (20, 2), (10, 20), (2, 10)
    relu = hs.ReLU([rng.normal(size=s) / s[1] ** 0.5 for s in shapes])
    yield "ReLU 2-20-10-2", relu, few, few_targets
    sequences = rng.normal(size=(5, 8))
    layer = hs.SelfAttention(1.0, *weights(2, 100))
    yield "SelfAttention, d_K = 100", layer, sequences, sequences[:, ::-1].copy()
    tokens = rng.normal(size=(4, 6, 3))
    keys = hs.MatrixAttention(rng.normal(size=(3, 3)), *weights(2, 3, 40))
    yield "MatrixAttention, d = 3, d_K = 40", keys, tokens, tokens[:, ::-1].copy()
    wide = hs.init.mup((6, 100_000, 2), rng)
    yield "TwoLayerLinear 6-100000-2", hs.TwoLayerLinear(*wide.weights), inputs, target
    relu = hs.TwoLayerReLU(rng.normal(size=(10_000, 2)), rng.normal(size=(2, 10_000)))
    yield "TwoLayerReLU 2-10000-2", relu, inputs[:20, :2], target[:20]
    deep = hs.DeepLinear.balanced((200,) * 5, np.linspace(0.5, 1.5, 200), rng)
    left, singular, right = np.linalg.svd(deep.product)
    cloud = np.eye(200) * 200**0.5
    yield "DeepLinear 200-200-200-200-200", deep, cloud, cloud @ (left * singular**0.5 @ right).T
    tokens = rng.normal(size=(10, 10, 10))
    keys = hs.MatrixAttention(rng.normal(size=(10, 10)) / 3, *weights(2, 10, 100))
    yield "MatrixAttention, d = 10, d_K = 100", keys, tokens, tokens[:, ::-1].copy()
    layer = hs.SelfAttention(1.0, *weights(2, 10**6))
    yield "SelfAttention, d_K = 10⁶", layer, sequences, sequences[:, ::-1].copy()
    yield "ScalarLinear, width 10⁶", hs.ScalarLinear(*weights(2, 10**6)), x, y
    yield "ScalarReLU, width 10⁶", hs.ScalarReLU(*weights(2, 10**6)), x, y


def _models() -> Iterator[tuple[str, Any]]:
    """Yield matrices of PyTorch models that a theorem solves on few samples."""
    import torch
    from torch import nn

    def model(*widths: int) -> nn.Module:
        layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.GELU())]
        return nn.Sequential(*layers[:-1]).double()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = torch.randn(3, 6, dtype=torch.float64), torch.arange(3)
        small, loss = model(6, 14, 10, 3), nn.CrossEntropyLoss()
        yield "GELU network 6-14-10-3, 3 samples", hs.hessian(small, (x, y), loss)
        yield "its Gauss–Newton part", hs.ggn(small, (x, y), loss)
        x, y = torch.randn(20, 64, dtype=torch.float64), torch.arange(20) % 10
        wide = model(64, 100, 100, 10)
        yield "Gauss–Newton 64-100-100-10, 20 samples", hs.ggn(wide, (x, y), loss)


def _measure(name: str, net: Any, x: Any, y: Any) -> Row:
    began = time.perf_counter()
    spectrum = net.hessian(x, y).spectrum()
    seconds = time.perf_counter() - began
    deviation = _off_autodiff(net, x, y, spectrum) if len(spectrum) <= AUTODIFF_LIMIT else None
    return _row(name, spectrum, seconds, net.hessian(x, y), deviation)


def _measure_model(name: str, operator: Any) -> Row:
    began = time.perf_counter()
    spectrum = operator.spectrum()
    seconds, deviation = time.perf_counter() - began, None
    if len(spectrum) <= AUTODIFF_LIMIT:
        dense = np.asarray(operator.dense())
        deviation = _gap(spectrum, np.linalg.eigvalsh(dense)[::-1])
    return _row(name, spectrum, seconds, operator, deviation)


def _row(name: str, spectrum: hs.Spectrum, seconds: float, H: Any, deviation: float | None) -> Row:
    certificate = spectrum.verify(H, samples=4)
    return Row(
        name,
        len(spectrum),
        spectrum.method,
        seconds,
        deviation,
        certificate.residual,
        certificate.trace_defect,
        certificate.norm_defect,
    )


def _gap(spectrum: hs.Spectrum, values: Any) -> float:
    """Return the worst gap to other eigenvalues, relative to the largest of them."""
    return float(np.abs(np.asarray(spectrum.eigenvalues) - values).max() / np.abs(values).max())


def _off_autodiff(net: Any, x: Any, y: Any, spectrum: hs.Spectrum) -> float:
    """Return the worst gap to the eigenvalues of PyTorch's Hessian, relative to its norm."""
    import torch

    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    dense = torch.autograd.functional.hessian(
        lambda theta: _loss_in_torch(net, theta, inputs, targets),
        torch.from_numpy(net.parameters()),
    )
    return _gap(spectrum, torch.linalg.eigvalsh(dense).numpy()[::-1])


def _loss_in_torch(net: Any, theta: Any, x: Any, y: Any) -> Any:
    """Return the mean-squared error of a network, spelled out for PyTorch to differentiate."""
    import torch

    match net:
        case hs.ScalarLinear():
            v, w = theta.reshape(2, -1)
            f = x * (w @ v)
        case hs.ScalarReLU():
            v, w = theta.reshape(2, -1)
            f = torch.relu(x[:, None] * v) @ w
        case hs.ScalarAffine():
            v, b, w = theta.reshape(3, -1)
            f = (x[:, None] * v + b) @ w
        case hs.DecoupledInputs():
            V, W = theta.reshape(2, *net.W.shape)
            f = x @ (V * W).sum(dim=1)
        case hs.DecoupledOutputs():
            V, W = theta.reshape(2, *net.W.shape)
            f = x[:, None] * (V * W).sum(dim=1)
        case hs.SelfAttention():
            q, k = theta[1:].reshape(2, -1)
            scores = x[:, :, None] * x[:, None, :] * (q @ k) / len(q) ** 0.5
            f = theta[0] * (torch.softmax(scores, dim=-1) @ x[:, :, None])[..., 0]
        case hs.MatrixAttention():
            shapes = [tuple(w.shape) for w in (net.W_v, net.W_q, net.W_k)]
            pieces = torch.split(theta, [a * b for a, b in shapes])
            V, Q, K = (p.reshape(s) for p, s in zip(pieces, shapes, strict=True))
            scores = x @ Q @ K.T @ x.transpose(1, 2) / Q.shape[1] ** 0.5
            f = torch.softmax(scores, dim=-1) @ x @ V
            return ((f - y) ** 2).sum(dim=-1).mean() / 2
        case _:
            pieces = torch.split(theta, [w.size for w in net.weights])
            f, rectified = x, isinstance(net, hs.ReLU)
            for i, (piece, w) in enumerate(zip(pieces, net.weights, strict=True)):
                f = (torch.relu(f) if rectified and i else f) @ piece.reshape(w.shape).T
            if isinstance(net, hs.ResidualLinear):
                f = f + x
    return ((f - y) ** 2).sum() / (2 * (x.numel() if isinstance(net, hs.SelfAttention) else len(x)))
