"""``hs.flat_directions``: how many eigenvalues of a model's Hessian are exactly zero, by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from hessence._common.files import Saved
from hessence._common.messages import table_lines
from hessence._common.schema import require_fields
from hessence.models._range import HessianRange, NoRange
from hessence.models.criterion import Reduction
from hessence.models.model_matrices import hessian


class FlatLayer(NamedTuple):
    """The flat directions of a layer.

    Attributes
    ----------
    name : str
        The layer, or the parameter if it belongs to none.
    parameters : int
        How many parameters the layer has.
    r_h, r_delta : int or None
        The ranks of the layer's inputs, and of the gradients at its outputs, over all samples and
        positions, added up over groups. None where no theorem is known.
    flat : int
        The number of its directions that are exactly flat.
    """

    name: str
    parameters: int
    r_h: int | None
    r_delta: int | None
    flat: int


@dataclass(frozen=True, eq=False, repr=False)
class FlatDirections(Saved, kind="flat-directions"):
    """The directions on which a Hessian is exactly zero, counted layer by layer.

    Attributes
    ----------
    layers : tuple of FlatLayer
        The table, in the order of ``model.parameters()``.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> data = torch.randn(20, 3), torch.randn(20, 1)
    >>> flat = hs.flat_directions(model, (data[0][:2], data[1][:2]))
    >>> flat.total, flat.size, [layer.flat for layer in flat.layers]
    (8, 21, [8, 0])
    """

    layers: tuple[FlatLayer, ...]

    @property
    def total(self) -> int:
        """How many eigenvalues are certainly zero."""
        return sum(layer.flat for layer in self.layers)

    @property
    def size(self) -> int:
        """The number of all eigenvalues."""
        return sum(layer.parameters for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {"format": self.format, "layers": [layer._asdict() for layer in self.layers]}

    @classmethod
    def _rebuilt(cls, data: dict[str, Any]) -> Self:
        for layer in data["layers"]:
            require_fields(FlatLayer, layer)
        return cls(tuple(FlatLayer(**layer) for layer in data["layers"]))

    def __repr__(self) -> str:
        rows = [["–" if cell is None else str(cell) for cell in row] for row in self.layers]
        headings = ("layer", "parameters", "r_h", "r_delta", "flat")
        lines = table_lines(headings, rows, len(rows), left=1)
        return "\n".join([f"{self.total} of {self.size} eigenvalues are exactly zero", *lines])


def flat_directions(
    model: Any,
    data: Any,
    loss: Any = None,
    params: Any = None,
    *,
    reduction: Reduction | None = None,
    eval_mode: bool = False,
    memory: float | None = None,
    closure: bool | None = None,
    copy: bool = True,
) -> FlatDirections:
    r"""Count the eigenvalues of a model's Hessian that are exactly zero, without a product.

    The Hessian sees a change of a layer's weight only through what the layer takes and through the
    gradients at what it makes. With ranks :math:`r_h` and :math:`r_\delta` of these over the data,
    :math:`(d_{\rm in} - r_h)(d_{\rm out} - r_\delta)` directions of the layer are flat; in a layer
    whose input depends on no parameter, :math:`r_\delta` is 0. That covers linear layers,
    convolutions and embeddings, with anything in between and any loss; a bias counts as the weight
    of a constant input. There may be more zeros than these.

    Parameters
    ----------
    model, data, loss, params, reduction, eval_mode, memory, closure, copy
        See ``hs.hessian``.

    Returns
    -------
    FlatDirections
        ``total``, and ``layers``, a table. It takes one gradient of the loss, and some small
        decompositions for each layer.

    Notes
    -----
    Ranks are decided up to rounding: a direction is left out if it holds a share of less than some
    16 ε of what the layer takes, or of the gradients.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> layers = [torch.nn.Linear(10, 30), torch.nn.GELU(), torch.nn.Linear(30, 20, bias=False)]
    >>> model = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(20, 2)).double()
    >>> data = torch.randn(3, 10).double(), torch.tensor([0, 1, 1])
    >>> hs.flat_directions(model, data, torch.nn.CrossEntropyLoss())
    717 of 972 eigenvalues are exactly zero
      layer  parameters  r_h  r_delta  flat
      0             330    3        0   240
      2             600    3        3   459
      4              42    3        1    18
    """
    H = hessian(model, data, loss, params, reduction, eval_mode, memory, closure=closure, copy=copy)
    try:
        found = HessianRange(H)
    except NoRange as refusal:
        raise ValueError(f"flat directions cannot be counted: {refusal}") from None
    return FlatDirections(tuple(_rows(found)))


def _rows(found: HessianRange) -> list[FlatLayer]:
    """Return the table's rows: matrices with their biases, and other parameters."""
    names = found._copy.parameters.names
    matrices = {matrix.weight: matrix for matrix in found.valid}
    joined = {matrix.bias for matrix in matrices.values()}
    rows = []
    for leaf in found.chosen:
        if leaf in matrices:
            matrix = matrices[leaf]
            groups, out, width = matrix.shape
            r_h, r_delta = (sum(ranks) for ranks in zip(*matrix.ranks, strict=True))
            name = names[leaf].removesuffix(".weight")
            rows.append(FlatLayer(name, groups * out * width, r_h, r_delta, matrix.flat))
        elif leaf not in joined:
            numbers = found.leaves[leaf].numel()
            flat = numbers if leaf in found.unused else 0
            rows.append(FlatLayer(names[leaf], numbers, None, None, flat))
    return rows
