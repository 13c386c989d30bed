"""The pictures of the demo: networks with exact spectra, and PyTorch models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import hessence as hs
from hessence.papers.page import Picture
from hessence.plotting.axes import COLOURS, GREY, legend_below, new_figure
from hessence.plotting.spectra import draw_spectrum, draw_sweep


def network_pictures() -> Iterator[Picture]:
    """Yield the pictures one after another."""
    yield _relu_by_cell()
    yield _pair_through_training()
    yield _data_scale()
    yield _depth_gap()
    yield _predicted_solution()
    yield _attention_sweeps()
    yield _edge_of_stability()


def _relu_by_cell() -> Picture:
    rng = np.random.default_rng(3)
    v = np.concatenate([np.abs(rng.normal(size=6)), -np.abs(rng.normal(size=4))])
    x = rng.normal(size=1000)
    net = hs.ScalarReLU(rng.normal(size=10), v)
    spectrum = net.hessian(x, np.maximum(x, 0) + rng.normal(size=1000)).spectrum()
    figure, (ax,) = new_figure()
    draw_spectrum(spectrum, ax)
    return Picture(
        "relu-spectrum-by-cell",
        "ReLU: one spectrum for each cell",
        "All 20 eigenvalues of a ReLU network of width 10. Six units see the positive samples, "
        "four the negative ones; each cell brings a pair of outliers and a symmetric bulk.",
        figure,
    )


def _pair_through_training() -> Picture:
    rng = np.random.default_rng(1)
    x = np.linspace(-1, 1, 100)
    relu = hs.ScalarReLU(0.3 * rng.normal(size=10), 0.3 * rng.normal(size=10))
    linear = hs.ScalarLinear(relu.w, np.abs(relu.v))
    figure, axes = new_figure(width=11.0, height=4.8, columns=2)
    for ax, net, target, momentum, title in (
        (axes[0], linear, x, 0.0, "linear network on a line"),
        (axes[1], relu, np.abs(x), 0.9, "ReLU network on a wedge, momentum 0.9"),
    ):
        trajectory = hs.gradient_descent(net, x, target, lr=0.18, steps=80, momentum=momentum)
        trajectory.plot(ax)
        legend_below(ax)
        ax.set_title(title, fontsize=11)
    return Picture(
        "outlier-pair-through-training",
        "The outlier pair through training",
        "Gradient descent with rate 0.18 at width 10, followed in reduced coordinates. The "
        "smaller outlier turns positive where the early phase ends, and tends to zero at the "
        "solution. With momentum the network overshoots into the divergent phase, where it is "
        "negative again.",
        figure,
    )


def _data_scale() -> Picture:
    rng = np.random.default_rng(2)
    noise, y = rng.normal(size=(2, 100_000))
    variances = np.geomspace(0.1, 20, 100)
    figure, axes = new_figure(width=11.0, columns=2)
    for ax, width in zip(axes, (10, 1000), strict=True):
        w, v = rng.normal(size=(2, width)) / width**0.5
        net = hs.ScalarLinear(w, v)
        spectra = [net.hessian(np.sqrt(s) * noise, y).spectrum() for s in variances]
        draw_sweep(variances, spectra, ax, name="variance of the inputs")
        ax.set_xscale("log")
        ax.set_title(f"width {width}", fontsize=11)
    _one_legend(figure, axes)
    return Picture(
        "data-scale",
        "The scale of the data sets the scale of the spectrum",
        "Outliers and bulk of a linear network at initialisation, on 100 000 Gaussian samples, "
        "against the variance of the inputs; the scale of the eigenvalues is logarithmic on either "
        "side of zero.",
        figure,
    )


def _depth_gap() -> Picture:
    depths = np.arange(2, 11)
    x = hs.whiten(np.random.default_rng(4).normal(size=(60, 8)))
    dominant, mixed = [], []
    for depth in depths:
        net = hs.DeepLinear.balanced((8, *(8,) * (depth - 1), 6), (1.1, 1.1, 1.1), rng=int(depth))
        spectrum = net.hessian(x, net(x)).spectrum()
        dominant.append([float(space.value) for space in spectrum["dominant"]])
        mixed.append([float(space.value) for space in spectrum["mixed"]])
    figure, axes = new_figure(width=11.0, columns=2)
    for values, name, colour in (
        (dominant, "dominant, r² = 9", COLOURS[1]),
        (mixed, "mixed, r (d₀ + d_L − 2r) = 24", COLOURS[0]),
    ):
        axes[0].semilogy(depths, [v[0] for v in values], "o-", color=colour, label=name)
        axes[0].semilogy(depths, [v[-1] for v in values], "o-", color=colour)
    axes[0].set_ylabel("eigenvalue")
    ratio = [max(d) / max(m) for d, m in zip(dominant, mixed, strict=True)]
    axes[1].plot(depths, depths, color=GREY, linestyle=":", label="ratio = depth")
    axes[1].plot(depths, ratio, "o", color=COLOURS[1], label="computed")
    axes[1].set_ylabel("dominant over mixed")
    for ax in axes:
        ax.set_xlabel("depth")
        ax.legend(frameon=False)
    return Picture(
        "depth-gap",
        "Depth opens a gap in the spectrum",
        "Balanced networks of rank 3 with equal singular values, on white data: two clusters of "
        "eigenvalues, and a ratio between them that is exactly the depth.",
        figure,
    )


def _predicted_solution() -> Picture:
    rng = np.random.default_rng(5)
    x = hs.whiten(rng.normal(size=(200, 20)), scale=3.0)
    product = rng.normal(size=(20, 20)) / 20**0.5
    predicted = hs.solution_spectrum(x, x @ product.T, depth=5)
    net = hs.DeepLinear.balanced_from(product, (20,) * 6, rng=6)
    dense = net.hessian(x, x @ product.T).dense()
    computed = np.linalg.eigvalsh(dense)[::-1][: len(predicted)]
    figure, (ax,) = new_figure()
    ranks = np.arange(1, len(predicted) + 1)
    ax.semilogy(
        ranks[::8], computed[::8], "o", color=COLOURS[1], label="dense solver on the network"
    )
    ax.semilogy(ranks, predicted.eigenvalues, color="black", label="predicted from the data alone")
    ax.set_xlabel("rank of the eigenvalue")
    ax.set_ylabel("eigenvalue")
    ax.legend(frameon=False)
    return Picture(
        "predicted-solution",
        "The data predict the spectrum of the solution",
        "A balanced network of 5 layers and width 20 at zero loss: all 400 non-zero eigenvalues "
        "as the data predict them, and every eighth as a dense solver finds it in the network.",
        figure,
    )


def _attention_sweeps() -> Picture:
    rng = np.random.default_rng(7)
    keys, count = 1000, 80
    q, k = (w / np.linalg.norm(w) for w in rng.normal(size=(2, keys)))
    x = rng.normal(size=(10, 10))
    y = rng.normal(size=(10, 10))
    ones = np.ones((count, 1))
    figure, axes = new_figure(width=13.0, columns=3)
    norms, strengths = np.linspace(0.1, 30, count), np.linspace(0, 6, count)
    by_keys = hs.SelfAttention(np.ones(count), norms[:, None] * q, norms[:, None] * k)
    by_value = hs.SelfAttention(np.linspace(0, 3, count), 8 * q * ones, 8 * k * ones)
    sinks = hs.SelfAttention(np.ones(count), 8 * q * ones, 8 * k * ones).with_sink(strengths)
    for ax, net, parameter, name in (
        (axes[0], by_keys, norms, "norm of query and key weights"),
        (axes[1], by_value, np.linspace(0, 3, count), "value weight"),
        (axes[2], sinks, strengths, "strength of the sink"),
    ):
        draw_sweep(parameter, net.hessian(x, y).spectrum(), ax, name=name)
    _one_legend(figure, axes)
    return Picture(
        "attention-sweeps",
        "Outliers and bulk of self-attention",
        "All 2001 eigenvalues of a self-attention layer with d_K = 1000, on ten sequences of ten "
        "tokens, against the norm of its query and key weights, its value weight, and the strength "
        "of an attention sink on the first token; the scale of the eigenvalues is logarithmic on "
        "either side of zero.",
        figure,
    )


def _edge_of_stability() -> Picture:
    rng = np.random.default_rng(0)
    x = np.asarray([1.1, -1.0, 0.6])
    net = hs.SelfAttention(0.1 * rng.normal(), *(0.1 * rng.normal(size=(2, 2))))
    t: Any = hs.gradient_descent(net, x, x[::-1], lr=2.3, steps=600)
    figure, axes = new_figure(width=13.0, columns=4)
    for ax, curves, title in (
        (axes[0], {"loss": t.loss}, "loss"),
        (axes[1], {"sharpness": t.sharpness}, "largest eigenvalue"),
        (axes[2], {"trace": t.trace}, "trace"),
        (axes[3], {"value": np.abs(t.value), "query": t.query_norm, "key": t.key_norm},
         "norm of the weights"),
    ):  # fmt: skip
        for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
            _by_parity(ax, values, colour, name, "--" if name == "key" else "-")
        ax.set_xlabel("step")
        ax.set_ylabel(title)
        ax.margins(x=0)
    axes[0].set_yscale("log")
    axes[1].axhline(2 / t.lr, color="black", linestyle="--", linewidth=1, label="2 / lr")
    axes[0].legend(axes[0].lines, ("odd steps", "even steps"), frameon=False)
    for ax in (axes[1], axes[3]):
        ax.legend(frameon=False)
    return Picture(
        "edge-of-stability",
        "Self-attention at the edge of stability",
        "Learning to reverse a sequence with rate 2.3 and d_K = 2. The sharpness rises to the "
        "threshold 2 / lr, crosses it, and swings around it, above at one step and below at the "
        "next. The loss stops falling there.",
        figure,
    )


def _by_parity(ax: Any, values: Any, colour: str, name: str, style: str) -> None:
    """Draw even steps dark and odd ones light: one line would fill all that it swings over."""
    steps = np.arange(len(values))
    for first, alpha, label in ((1, 0.45, None), (0, 1.0, name)):
        line = {"color": colour, "alpha": alpha, "linestyle": style, "linewidth": 1.3}
        ax.plot(steps[first::2], values[first::2], label=label, **line)


def _one_legend(figure: Any, axes: list[Any]) -> None:
    """Put one legend under axes that all show the same."""
    handles, labels = axes[0].get_legend_handles_labels()
    for ax in axes:
        ax.get_legend().remove()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


STEPS, EVERY, LR = 1000, 20, 0.12


def model_pictures() -> list[Picture]:
    """Train a small network, watching its curvature, and look at where it ends."""
    torch.manual_seed(0)
    x = torch.randn(200, 8, dtype=torch.float64)
    y = torch.stack([x[:, 0] * x[:, 1], torch.sin(2 * x[:, 2]), x[:, 3].abs()], dim=1)
    model = nn.Sequential(
        nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)
    ).double()
    monitor = hs.Monitor(model, (x, y), "mse", k=2, lr=LR)
    _train(model, x, y, monitor)
    figure, (ax,) = new_figure()
    monitor.plot(ax)
    legend_below(ax)
    through_training = Picture(
        "model-through-training",
        "Any PyTorch model through training",
        "The two largest eigenvalues of the Hessian of a tanh network under full-batch gradient "
        "descent, and of its Gauss–Newton part: the sharpness rises beyond 2 / lr and then swings "
        f"around it. A measurement took {monitor.history.products.mean():.0f} products on average.",
        figure,
    )
    figure, (ax,) = new_figure()
    found: Any = hs.spectrum(model, (x, y), "mse", k=10, probes=8)
    found.plot(ax)
    density = Picture(
        "model-density",
        "Its spectrum in the end, with a band",
        f"The density of all {found.size} eigenvalues with its 95 % band, and the ten largest ones "
        f"with errors below {float(found.errors.max()):.0e}, from {found.products} products.",
        figure,
    )
    return [through_training, density]


def _train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, monitor: hs.Monitor) -> None:
    parameters = list(model.parameters())
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            monitor.measure(step)
        loss = ((model(x) - y) ** 2).sum(dim=1).mean() / 2
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.data -= LR * gradient
