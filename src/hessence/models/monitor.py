"""``hs.Monitor``: the top of the Hessian, measured from inside a training loop."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from hessence._common.arguments import Seed, as_positive, require_int, require_tolerance, seed
from hessence._common.arrays import NotFiniteError
from hessence._common.device import full_precision
from hessence.krylov.trace import FEWEST, trace
from hessence.models._exact_kernels import outside_inference
from hessence.models._monitor_files import MonitorFiles
from hessence.models._parameters import Parameters
from hessence.models._tracking import Top, Tracker
from hessence.models.criterion import PairCriterion
from hessence.models.history import History, Measurement
from hessence.models.model_layers import unwrap
from hessence.models.model_matrices import hessian


class Monitor:
    r"""Measures the top of a model's Hessian again and again while the model is trained.

    Each measurement starts from what the last ones have found, and so takes few products. The
    monitor keeps a copy of the model and its own data. ``measure`` loads the parameters and buffers
    that the model has by then into the copy, and does nothing else to the model.

    Parameters
    ----------
    model, data, loss
        See ``hs.hessian``. Data and loss are read when the monitor is made.
    k : int
        How many of the largest eigenvalues to measure.
    ggn : bool
        Whether to measure those of the Gauss–Newton matrix too, for about as many products again.
        A closure as loss has none; it is then left out, and NaN in the records.
    trace : int
        How many products to spend on the trace of the Hessian, at least 4; 0 leaves it out. All
        measurements use the same random vectors, so that changes show better than the standard
        error tells.
    tol : float
        Residuals ‖Hz − λz‖ are at most tol · ‖H‖.
    lr : float, optional
        The learning rate, for the line 2 / lr in the picture. ``measure`` takes one too. With
        momentum β steps are stable up to 2 (1 + β) / lr: give lr / (1 + β).
    path : str or path, optional
        A JSON file to keep the history in, written after every measurement. If it exists, the
        monitor continues the history in it. Beside it a file ``.npz`` keeps the vectors to start
        from. For large models these take longer to write, so measure less often.
    refresh : int
        Every so many measurements, a search from a random vector tests whether an eigenvalue has
        overtaken those that are followed; 0 leaves that out. See Notes.
    remember : int
        How many approximate eigenvectors to keep beside the k; they save products.
    rng : int or numpy.random.Generator
        The source of random vectors; of a Generator a seed is drawn, once.
    **options
        ``params``, ``reduction``, ``closure``, ``eval_mode``, ``memory``, ``compile`` and
        ``copy`` of ``hs.hessian``.

    Notes
    -----
    *Cost.* For k = 1, a tanh network with 8970 parameters and measurements at every step, a
    measurement took 1.4 to 6 products with tol 1e-4 and 1.3 to 2.8 with 1e-2, refreshing included.
    The first one, without a warm start, took 8 to 25. Every measurement adds a forward pass for the
    loss and a forward and backward pass to set up the products. Between measurements the copy of
    the model and 3 k + `remember` vectors of its size are kept, twice that many with `ggn`.

    *Overtaking.* The monitor follows eigenvectors from step to step. If the eigenvalue of another
    eigenvector overtakes, and the start has no part of that eigenvector (as in exactly decoupled
    models), residuals cannot tell. The next refreshing notices it with a probability of 0.9, and
    the one after it brings that to 0.99. Records that were tested like this have ``checked``.

    *Restarts.* A new monitor with the same `path` continues the history. If the training script
    starts again from an earlier checkpoint, the first step that it measures replaces the record of
    that step and drops those after it. If that leaves none, the old history is kept in a file
    ``.bak``. ``hs.load(path)`` reads a history. Within one monitor steps must increase.

    *Data-parallel runs.* Every process that ``torch.distributed`` has joined makes its own monitor
    with its share of the data and calls ``measure``; all get the same record, and the first one
    reads and writes the files.

    *Threads.* Other threads may use the model while it is measured. None should train it during the
    moment in which ``measure`` loads its parameters, or they are taken from the middle of a step.

    Where the loss or the products are not finite any more, eigenvalues are recorded as NaN.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(5, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
    >>> x = torch.randn(100, 5)
    >>> y = x[:, :1] * x[:, 1:2]
    >>> loss = torch.nn.MSELoss()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> monitor = Monitor(model, (x, y), loss, lr=0.1)
    >>> for step in range(20):
    ...     if step % 5 == 0:
    ...         _ = monitor.measure(step)
    ...     optimizer.zero_grad()
    ...     loss(model(x), y).backward()
    ...     optimizer.step()
    >>> monitor.history.steps
    array([ 0,  5, 10, 15])
    >>> H = hs.hessian(model, (x, y), loss)
    >>> record = monitor.measure(20)
    >>> bool(abs(record.sharpness - torch.linalg.eigvalsh(H.dense())[-1]) <= record.errors[0])
    True
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        loss: Any = None,
        k: int = 1,
        *,
        ggn: bool = True,
        trace: int = 0,
        tol: float = 1e-4,
        lr: float | None = None,
        path: str | os.PathLike[str] | None = None,
        refresh: int = 20,
        remember: int = 10,
        rng: Seed = 0,
        **options: Any,
    ) -> None:
        self._model, self._params = model, options.get("params")
        self._hessian = hessian(model, data, loss, **options)
        size = self._hessian.shape[0]
        require_int("k", k, 1, size)
        require_int("trace", trace, 0)
        if 0 < trace < min(FEWEST, size):
            raise ValueError(f"trace must be 0 or at least {FEWEST} products, got {trace!r}.")
        require_int("refresh", refresh, 0)
        require_int("remember", remember, 0)
        require_tolerance(tol)
        self._lr = _rate(lr)
        self._trace, self._refresh, self._rng = int(trace), int(refresh), seed(rng)
        self._history = History(size, int(k))
        self._trackers = {"hessian": Tracker(int(k), float(tol), int(remember))}
        if ggn and isinstance(self._hessian.problem.criterion, PairCriterion):
            self._trackers["ggn"] = Tracker(int(k), float(tol), int(remember))
        self._last: int | None = None
        self._files = None
        if path is not None:
            self._files = MonitorFiles(path)
            self._history, states = self._files.load(self._history)
            for name, tracker in self._trackers.items():
                tracker.restore(states.get(name, {}), self._hessian.reference, size)

    @property
    def history(self) -> History:
        """All measurements so far."""
        return self._history

    @property
    def eigenvectors(self) -> Tensor | None:
        """The Hessian's eigenvectors of the last measurement (p, k), for its k eigenvalues.

        In the order of ``model.parameters()``. They have had one more correction than those whose
        errors were measured. A monitor that continues a history has those of the last measurement
        in its file; None before any measurement.
        """
        return self._trackers["hessian"].eigenvectors

    def measure(self, step: int, *, lr: float | None = None) -> Measurement:
        """Measure the model as it is now, and save the history if there is a path.

        Parameters
        ----------
        step : int
            The step of training, greater than the last one measured by this monitor.
        lr : float, optional
            The learning rate now, if it is not the one that the monitor was made with.
        """
        require_int("step", step)
        if self._last is not None and step <= self._last:
            raise ValueError(
                f"step must be greater than the last one, {self._last}, got {step!r}; for another "
                "run make another Monitor."
            )
        rate = self._lr if lr is None else _rate(lr)
        earlier = self._history.before(int(step))
        with outside_inference(), full_precision():
            record = self._measured(int(step), rate, len(earlier))
        if self._files is not None and len(self._history) and not len(earlier):
            self._files.set_aside()
        self._last = int(step)
        self._history = replace(earlier, records=(*earlier.records, record))
        if self._files is not None:
            states = {name: tracker.state() for name, tracker in self._trackers.items()}
            self._files.save(self._history, states)
        return record

    def plot(self, ax: Any = None) -> Any:
        """Draw the eigenvalues through training and 2 / lr; returns the axes."""
        return self._history.plot(ax)

    def __repr__(self) -> str:
        return f"Monitor: {self._history!r}"

    def _measured(self, step: int, lr: float, index: int) -> Measurement:
        self._require_same_parameters()
        H = self._hessian
        H.load(self._model)
        loss = H.loss()
        if index == 0 and math.isfinite(loss):
            H.require_sound()
        top = self._top("hessian", H, index, loss)
        value, stderr, spent = math.nan, math.nan, 0
        if self._trace and np.isfinite(top.values).all():
            found = trace(H, self._trace, self._rng)
            value, stderr, spent = found.value, found.stderr, found.products
        H.release()
        without_ggn = "ggn" not in self._trackers
        linear = _nothing(self._history.k)
        if not without_ggn:
            linear = self._top("ggn", H.ggn, index, loss)
            H.ggn.release()
        return Measurement(
            step=step,
            loss=loss,
            eigenvalues=top.values,
            errors=top.errors,
            ggn_eigenvalues=linear.values,
            ggn_errors=linear.errors,
            trace=value,
            trace_stderr=stderr,
            lr=lr,
            products=top.products,
            ggn_products=linear.products,
            trace_products=spent,
            converged=top.converged and (linear.converged or without_ggn),
            checked=top.checked and (linear.checked or without_ggn),
        )

    def _require_same_parameters(self) -> None:
        """Refuse a model whose chosen parameters are not those that the monitor was made with."""
        now = Parameters.select(unwrap(self._model), self._params)
        if now.names != self._hessian.parameters.names:
            before = self._history.parameters
            raise ValueError(f"model must have {before} parameters as before, got {now.size}.")

    def _top(self, name: str, operator: Any, index: int, loss: float) -> Top:
        if not math.isfinite(loss):
            return _nothing(self._history.k)
        check = self._refresh > 0 and index % self._refresh == 0
        # Seeds follow from the place in the history, so that a restart changes none of them.
        rng = np.random.default_rng([self._rng, index, name == "ggn"])
        try:
            return self._trackers[name].measure(operator, rng, check=check)
        except NotFiniteError:
            return _nothing(self._history.k)


def _nothing(k: int) -> Top:
    return Top(np.full(k, math.nan), np.full(k, math.nan), 0, converged=False, checked=False)


def _rate(lr: Any) -> float:
    return math.nan if lr is None else as_positive("lr", lr)
