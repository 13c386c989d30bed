"""``hs.layer_spectra``: the Hessian restricted to the parameters of each layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, get_args

from hessence._common.arguments import Seed, require_int, require_options
from hessence._common.arrays import to_numpy
from hessence._common.files import Saved
from hessence.krylov.eigenpairs import eigenpairs
from hessence.krylov.eigenpairs_result import Eigenpairs
from hessence.models.criterion import Reduction
from hessence.models.model_matrices import ggn, hessian

Groups = Literal["layer", "parameter"]
Of = Literal["hessian", "ggn"]

ROOT = "(model)"
"""The name of the group of parameters that belong to the model itself, not to a layer in it."""

SHOWN = 4
"""How many eigenvalues of a group are printed."""


class LayerSpectra(dict[str, Eigenpairs], Saved, kind="layer-spectra"):
    """Eigenvalues of restrictions to groups of parameters, by the groups' names.

    A dictionary that prints as a table and can be drawn.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> data = torch.randn(20, 3), torch.randn(20, 1)
    >>> layers = hs.layer_spectra(model, data, k=2)
    >>> list(layers), layers["0"].eigenvalues.shape
    (['0', '2'], torch.Size([2]))
    """

    @property
    def products(self) -> int:
        """How many products all groups took together."""
        return sum(pairs.products for pairs in self.values())

    @property
    def converged(self) -> bool:
        """Whether every eigenvalue of every group is resolved."""
        return all(pairs.converged for pairs in self.values())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data that JSON can hold, exactly."""
        groups = {name: pairs.to_dict() for name, pairs in self.items()}
        return {"format": self.format, "groups": groups}

    @classmethod
    def _rebuilt(cls, data: dict[str, Any]) -> Self:
        groups = dict(data["groups"])
        return cls({name: Eigenpairs.from_dict(pairs) for name, pairs in groups.items()})

    def plot(self, ax: Any = None) -> Any:
        """Draw the eigenvalues of each group, on a logarithmic scale if all of them are positive.

        See ``hessence.plotting.spectra``.
        """
        from hessence.plotting.spectra import draw_layers

        return draw_layers(self, ax)

    def __repr__(self) -> str:
        rows = [("group", "parameters", "eigenvalues", "error")]
        rows += [_row(name, pairs) for name, pairs in self.items()]
        name, parameters, values, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = [f"  {a:<{name}}  {b:>{parameters}}  {c:<{values}}  {d}" for a, b, c, d in rows]
        plural = "s" * (len(self) != 1)
        head = f"{len(self)} group{plural} of parameters, {self.products} products"
        open_ends = [f"  ! {name}: {p.message}" for name, p in self.items() if not p.converged]
        return "\n".join([head, *lines, *open_ends])


def _row(name: str, pairs: Eigenpairs) -> tuple[str, str, str, str]:
    """Return the cells of a group's row; ``!`` marks a group that is not resolved."""
    values = [f"{value:.4g}" for value in to_numpy(pairs.eigenvalues)]
    if len(values) > SHOWN:
        values = [*values[: SHOWN - 1], "…", values[-1]]
    error = f"{to_numpy(pairs.errors).max():.1e}" + ("" if pairs.converged else " !")
    return name, str(pairs.eigenvectors.shape[0]), "  ".join(values), error


def layer_spectra(
    model: Any,
    data: Any,
    loss: Any = None,
    k: int = 1,
    *,
    params: Any = None,
    groups: Groups | Mapping[str, str | Sequence[str]] = "layer",
    of: Of = "hessian",
    which: str = "LA",
    tol: float = 1e-6,
    rng: Seed = 0,
    eval_mode: bool = False,
    memory: float | None = None,
    reduction: Reduction | None = None,
    closure: bool | None = None,
    copy: bool = True,
) -> LayerSpectra:
    """Return k eigenvalues of the Hessian restricted to each layer, from one set of graphs.

    Parameters
    ----------
    model, data, loss, params, eval_mode, memory, reduction, closure, copy
        See ``hs.hessian``.
    k : int
        How many eigenvalues of each group, or all if it has fewer.
    groups : {"layer", "parameter"} or dict
        What makes a group: all parameters of one module, each tensor on its own, or names with the
        patterns of their parameters, such as ``{"attention": "blocks.*.attn"}``.
    of : {"hessian", "ggn"}
        Which matrix is restricted.
    which, tol, rng
        See ``hs.eigenpairs``.

    Returns
    -------
    LayerSpectra
        A dictionary from names of modules to ``Eigenpairs``, in the order of
        ``model.parameters()``, that prints as a table and has a ``plot()``.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> data = torch.randn(50, 3), torch.randn(50, 1)
    >>> layers = hs.layer_spectra(model, data, torch.nn.MSELoss(), k=2)
    >>> {name: len(pairs) for name, pairs in layers.items()}
    {'0': 2, '2': 2}
    >>> layers
    2 groups of parameters, ... products
      group  parameters  eigenvalues...
      0              32  ...
      2               9  ...
    """
    if of not in get_args(Of):
        raise ValueError(f'of must be "hessian" or "ggn", got {of!r}.')
    make = hessian if of == "hessian" else ggn
    whole = make(
        model, data, loss, params, reduction, eval_mode, memory, closure=closure, copy=copy
    )
    require_int("k", k, 1)
    require_options(k, which, tol, rng)
    names = whole.parameters.names
    chosen = {
        group: [names[i] for i in whole.parameters.indices(patterns, "groups")]
        for group, patterns in _groups(names, groups).items()
    }
    whole.require_sound()
    spectra = LayerSpectra()
    for group, members in chosen.items():
        part = whole.restrict(members)
        spectra[group] = eigenpairs(part, min(k, part.shape[0]), which=which, tol=tol, rng=rng)
    return spectra


def _groups(
    names: Iterable[str], groups: str | Mapping[str, str | Sequence[str]]
) -> dict[str, str | Sequence[str]]:
    if isinstance(groups, Mapping):
        if not groups:
            raise ValueError("groups must have at least one entry, got none.")
        return dict(groups)
    if groups == "parameter":
        return {name: [name] for name in names}
    if groups != "layer":
        raise ValueError(
            f'groups must be "layer", "parameter" or a dictionary of patterns, got {groups!r}.'
        )
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0] or ROOT, []).append(name)
    return dict(layers)
