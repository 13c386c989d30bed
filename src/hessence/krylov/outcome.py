"""How an iteration ended, as a sentence, and what to do next."""

from __future__ import annotations

from enum import Enum
from typing import Any

from hessence._common.files import KINDS


class Outcome(Enum):
    """The ways in which an iteration ends.

    The text of a member is the sentence that a user reads, and the remedy that it ends with.

    Examples
    --------
    >>> Outcome.OUT_OF_PRODUCTS.converged, Outcome.CONVERGED.say(tol=1e-6)
    (False, 'Converged: residuals are at most 1.0e-06 · ‖H‖.')
    >>> Outcome.TOO_FINE.remedy
    'raise steps or width'
    """

    CONVERGED = "Converged: residuals are at most {tol:.1e} · ‖H‖", ""
    AT_ROUNDING = (
        "Converged: residuals are at most {tol:.1e} · ‖H‖, as small as rounding lets them be",
        "",
    )
    COPIES_UNCERTAIN = (
        "Converged: residuals are at most {tol:.1e} · ‖H‖. Copies of multiple eigenvalues may be "
        "missing, but for a confidence of {confidence:.2f}",
        "raise ncv or max_products",
    )
    OUT_OF_PRODUCTS = (
        "{open} of {count} eigenvalues have residuals above {tol:.1e} · ‖H‖ (up to {worst:.1e}) "
        "after {products} products",
        "raise max_products or ncv, ask for a larger tol, or go on from here with "
        "v0=result.eigenvectors",
    )
    NOISY = (
        "{open} of {count} eigenvalues have residuals above {tol:.1e} · ‖H‖ (up to {worst:.1e}) "
        "after {products} products; ⟨u, Hv⟩ and ⟨v, Hu⟩ differ by as much, so H is not symmetric, "
        "or its products carry noise of {noise:.0e} · ‖H‖",
        "check H, or ask for a larger tol",
    )
    ALL_KNOWN = "All eigenvalues are known", ""
    RESOLVED = "The steps resolve the width", ""
    TOO_FINE = (
        "The width is finer than the steps resolve, and the band wider for it",
        "raise steps or width",
    )
    NOT_SYMMETRIC = (
        "⟨u, Hv⟩ and ⟨v, Hu⟩ differ by {noise:.0e} · ‖H‖, so H is not symmetric, or its products "
        "carry noise",
        "check H",
    )

    @property
    def sentence(self) -> str:
        """What happened, with places for the numbers of the case."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do next; empty where nothing needs to be done."""
        return self.value[1]

    @property
    def converged(self) -> bool:
        """Whether the result is as accurate as was asked for."""
        return self not in (Outcome.OUT_OF_PRODUCTS, Outcome.NOISY)

    def to_dict(self) -> dict[str, str]:
        """Return the outcome as data that JSON can hold."""
        return {"format": "hessence.outcome/1", "name": self.name}

    @classmethod
    def from_dict(cls, data: dict[str, str]) -> Outcome:
        """Return the outcome that ``to_dict`` has named."""
        return cls[data["name"]]

    def say(self, **numbers: Any) -> str:
        """Return sentence and remedy, with the numbers of the case."""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.sentence.format(**numbers)}{remedy}."


KINDS["outcome"] = Outcome
