"""What training leaves behind: the networks and their spectra, step by step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, Generic, Self, TypeVar

import numpy as np

from hessence._common.arrays import Array, like, to_numpy
from hessence._common.files import Saved, decoded, encoded
from hessence._common.schema import fits
from hessence.networks.descent import Descent, Rule
from hessence.spectra.spectrum import Spectrum

State = TypeVar("State")

BUDGET = 256 * 2**20
"""How many bytes of states a trajectory keeps."""


class Trajectory(Saved, kind="trajectory"):
    """A network through training.

    Attributes
    ----------
    loss, sharpness, trace : array (steps + 1,)
        At each point; batch dimensions, if any, come last. The sharpness of linear networks is
        computed when first asked for.
    lr : float
        The learning rate, whose stability threshold for the sharpness is 2 / lr.
    method : str
        What the steps were taken on: ``"lines"`` for scalar networks and self-attention,
        ``"modes"`` for aligned linear networks, ``"moments"`` for others, else ``"weights"``.
    diverged : int or None
        The first step at which a number is no longer finite.
    outliers : array (steps + 1, ..., k)
        Scalar networks and self-attention: the outliers, largest first; for ReLU one pair for
        each of the cells +, −, NaN for a cell without units.
    bulk : array (steps + 1, ...)
        Scalar networks and self-attention: the bulk is at plus and minus this number; for ReLU
        one for each cell. NaN where there is no bulk, of a single unit or key.
    phase : sequence of str
        Scalar networks: the phase of learning; for ReLU that of the cell that dictates the
        sharpness.
    value, query_norm, key_norm : array (steps + 1, ...)
        Self-attention: w_V, ‖w_Q‖ and ‖w_K‖.

    Examples
    --------
    >>> import hessence as hs
    >>> net = hs.ScalarLinear([0.1, 0.2], [0.3, -0.1])
    >>> t = hs.gradient_descent(net, [1.0, -1.0], [1.0, -1.0], lr=0.1, steps=50)
    >>> len(t), t[50], len(t.spectrum(50))
    (51, ScalarLinear(m=2), 4)
    """

    loss: Array
    trace: Array
    outliers: Array
    bulk: Array
    phase: Any
    value: Array
    query_norm: Array
    key_norm: Array

    def __init__(
        self,
        descent: Descent,
        rule: Rule,
        steps: int,
        batch: Callable[[int], Descent | None] = lambda step: None,
    ) -> None:
        self.lr, self.method = rule.lr, descent.method
        self._descent: Descent | None = descent

        def advance(state: Any, step: int) -> Any:
            return descent.advance(state, rule, batch(step))

        self._states: Replay[Any] = Replay(descent.start, advance, steps, descent.state_bytes)
        with np.errstate(over="ignore", invalid="ignore"):
            found = descent.measure(self._states.run())
        finite = np.ones(steps + 1, dtype=bool)
        for name in {"loss", "trace", "sharpness"} & found.keys():
            finite &= np.isfinite(found[name]).reshape(steps + 1, -1).all(axis=-1)
        self.diverged: int | None = None if finite.all() else int(np.argmin(finite))
        self._names = tuple(found)
        for name, values in found.items():
            numbers = isinstance(values, np.ndarray) and values.dtype.kind == "f"
            self.__dict__[name] = like(values, descent.reference) if numbers else values

    def __len__(self) -> int:
        """Return the number of points, one more than the steps taken."""
        return int(self.loss.shape[0])

    def __getitem__(self, step: int) -> Any:
        """Return the network after `step` updates; negative steps count from the end."""
        return self._alive.network(self._state(step))

    def spectrum(self, step: int) -> Spectrum:
        """Return the whole spectrum after `step` updates, eigenvectors included."""
        return self._alive.hessian(self._state(step)).spectrum()

    @cached_property
    def sharpness(self) -> Array:
        """The largest eigenvalue at each point."""
        finite = len(self) if self.diverged is None else self.diverged
        values = np.full(self.loss.shape, np.nan)
        if finite:
            values[:finite] = self._alive.sharpness(islice(self._states.run(), finite))
        return like(values, self._alive.reference)

    def plot(self, ax: Any = None) -> Any:
        """Draw outliers, bulk and phases of a scalar network, else the sharpness against 2 / lr.

        Needs ``hessence[plot]``. Returns the axes.
        """
        from hessence.plotting.training import draw_sharpness, draw_trajectory

        draw = draw_trajectory if "phase" in self.__dict__ else draw_sharpness
        return draw(self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers at each point as data that JSON can hold, without the networks."""
        names = dict.fromkeys([*self._names, "sharpness"])
        numbers = {name: getattr(self, name) for name in names}
        return {
            "format": self.format,
            "lr": self.lr,
            "method": self.method,
            "diverged": self.diverged,
            "numbers": {
                name: encoded(values if hasattr(values, "shape") else tuple(values))
                for name, values in numbers.items()
            },
        }

    @classmethod
    def _rebuilt(cls, data: dict[str, Any]) -> Self:
        self = cls.__new__(cls)
        plain = {name: data[name] for name in ("lr", "method", "diverged")}
        numbers = {name: decoded(values) for name, values in dict(data["numbers"]).items()}
        kinds = {"lr": float, "method": str, "diverged": int | None}
        fit = all(fits(plain[name], kind) for name, kind in kinds.items())
        if not fit or not 0 < plain["lr"] < np.inf:
            raise ValueError("lr, method or diverged is not what it should be")
        known = {*cls.__annotations__, "sharpness"}
        if not {"loss", "sharpness"} <= numbers.keys() <= known:
            raise ValueError(f"it has the numbers {', '.join(numbers)[:80]}")
        if not all(fits(v, tuple if name == "phase" else Array) for name, v in numbers.items()):
            raise ValueError("its numbers are no arrays")
        points = {len(np.atleast_1d(values)) for values in numbers.values()}
        if len(points) != 1 or 0 in points or np.ndim(numbers["loss"]) == 0:
            raise ValueError("its lists differ in length")
        if plain["diverged"] is not None and not 0 <= plain["diverged"] < min(points):
            raise ValueError("it diverged at none of its steps")
        self._descent, self._names = None, tuple(numbers)
        self.__dict__.update(plain | numbers)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Networks are functions of the start and the data; a copy elsewhere goes without them.
        return Trajectory.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        last = len(self) - 1 if self.diverged is None else max(self.diverged - 1, 0)
        told = []
        # A sharpness that takes long to find is not found for being printed.
        for name in ("loss", "sharpness") if "sharpness" in self.__dict__ else ("loss",):
            values = to_numpy(getattr(self, name)).reshape(len(self), -1)
            told.append(f"{name} {values[0, 0]:.4g} → {values[last, 0]:.4g}")
        networks = int(np.prod(self.loss.shape[1:]))
        batch = f" of {networks} networks, the first" if networks > 1 else ""
        end = "" if self.diverged is None else f"; diverged at step {self.diverged}"
        points = "1 point" if len(self) == 1 else f"{len(self)} points"
        return f"{points} of training{batch}: {', '.join(told)}{end}"

    @property
    def _alive(self) -> Descent:
        if self._descent is None:
            raise ValueError(
                "these networks are gone: a trajectory read from a file keeps its numbers only; "
                "train again to get networks and spectra."
            )
        return self._descent

    def _state(self, step: int) -> Any:
        try:
            index = range(len(self))[operator.index(step)]
        except IndexError:
            outside = f"step {step} is outside a trajectory of {len(self)} points."
            raise IndexError(outside) from None
        if self.diverged is not None and index >= self.diverged:
            raise ValueError(
                f"there is no network after step {index}: training diverged at step "
                f"{self.diverged}; try a smaller lr."
            )
        return self._states[index]


class Replay(Generic[State]):
    """The states of a deterministic iteration: as many of `size` bytes as BUDGET holds."""

    def __init__(
        self, start: State, advance: Callable[[State, int], State], steps: int, size: int
    ) -> None:
        self._advance = advance
        self._steps = steps
        self._stride = max(1, -(-size * (steps + 1) // BUDGET))
        self._kept = [start]

    def run(self) -> Iterator[State]:
        """Yield all states, and keep some for the next time."""
        state = self._kept[0]
        yield state
        for step in range(1, self._steps + 1):
            at, rest = divmod(step, self._stride)
            if rest == 0 and at < len(self._kept):
                state = self._kept[at]
            else:
                state = self._advance(state, step - 1)
                if rest == 0:
                    self._kept.append(state)
            yield state

    def __getitem__(self, step: int) -> State:
        kept = step // self._stride
        state = self._kept[kept]
        for earlier in range(kept * self._stride, step):
            state = self._advance(state, earlier)
        return state
