"""What training leaves behind: the networks and their spectra, step by step."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import Any

from hessence._common.arrays import Array
from hessence.spectra.spectrum import Spectrum


class Trajectory(ABC):
    """A network through training.

    Attributes
    ----------
    loss, sharpness, trace : array (steps + 1,)
        At each point; batch dimensions, if any, come last.
    lr : float
        The learning rate, whose stability threshold for the sharpness is 2 / lr.
    diverged : int or None
        The first step at which a number is no longer finite.

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
    lr: float
    diverged: int | None

    def __len__(self) -> int:
        """Return the number of points, one more than the steps taken."""
        return int(self.loss.shape[0])

    def __getitem__(self, step: int) -> Any:
        """Return the network after `step` updates; negative steps count from the end."""
        try:
            step = operator.index(step)
        except TypeError:
            raise TypeError(
                f"a trajectory is indexed by a step, got {type(step).__name__}."
            ) from None
        index = step + len(self) if step < 0 else step
        if not 0 <= index < len(self):
            raise IndexError(f"step {step} is outside a trajectory of {len(self)} points.")
        if self.diverged is not None and index >= self.diverged:
            raise ValueError(
                f"there is no network after step {index}: training diverged at step "
                f"{self.diverged}; try a smaller lr."
            )
        return self._network(index)

    def spectrum(self, step: int) -> Spectrum:
        """Return the whole spectrum after `step` updates, eigenvectors included."""
        return self._spectrum(self[step])

    @property
    @abstractmethod
    def sharpness(self) -> Array:
        """The largest eigenvalue at each point."""

    def plot(self, ax: Any = None) -> Any:
        """Draw the sharpness against 2 / lr; needs ``hessence[plot]``. Returns the axes."""
        from hessence.plotting.training import draw_sharpness

        return draw_sharpness(self, ax)

    @abstractmethod
    def _network(self, step: int) -> Any:
        """Return the network at a valid step."""

    @abstractmethod
    def _spectrum(self, net: Any) -> Spectrum:
        """Return the spectrum of a network on the data of this trajectory."""
