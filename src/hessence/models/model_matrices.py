"""``hs.hessian`` and ``hs.ggn``: the two matrices of a PyTorch model, a loss and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

from torch import Tensor

from hessence.models._dual import NoDual, dual_spectrum, kernel
from hessence.models._model_copy import ModelCopy
from hessence.models._model_operator import ModelOperator, recordable
from hessence.models._problem import Problem
from hessence.models._products import GgnGraph, Graphs, HessianGraph, derivatives
from hessence.models.criterion import PairCriterion, Reduction, predict
from hessence.spectra.operators import Operator

ASKED = (
    "an estimate was asked for; spectrum() without arguments tries the dual, for all eigenvalues."
)


class ModelHessian(ModelOperator):
    """The Hessian of a model's loss, split as H = ``ggn`` + ``functional``."""

    solver: ClassVar[Callable[..., Any] | None] = None
    """Finds spectra by theorems. The module that knows them is above this one, and sets it."""

    @staticmethod
    def _moved(problem: Problem, batch: Any, there: ModelCopy) -> Sequence[Tensor]:
        return problem.gradients(batch, there)[0]

    def spectrum(self, *arguments: Any, **options: Any) -> Any:
        """Return the spectrum: exact if there is a theorem, else estimated.

        The arguments are those of ``hs.spectrum`` from ``k=10`` on, without those that say what the
        Hessian is of.
        """
        solver = type(self).solver
        if solver is None:
            return super().spectrum(*arguments, **options)
        return solver(self, *arguments, **options)

    @cached_property
    def ggn(self) -> ModelGgn:
        """The Gauss–Newton part."""
        return ModelGgn(self.problem, _ggn_graphs(self.problem), self._chosen)

    def release(self) -> None:
        """Drop all kept graphs, also those of the Gauss–Newton part."""
        super().release()
        if "ggn" in vars(self):
            self.ggn.release()

    @property
    def functional(self) -> Operator:
        """The functional part, H without its Gauss–Newton part; a product takes one of each."""
        return self - self.ggn


class ModelGgn(ModelOperator):
    """The Gauss–Newton part of a model's Hessian: what is left if the model is linearised."""

    @recordable
    def spectrum(self, *arguments: Any, **options: Any) -> Any:
        """Return all eigenvalues, exactly, by the dual; with arguments, an estimate.

        The dual is an eigenproblem of as many rows as there are predicted numbers, samples times
        outputs: at most 4096. With more, for a loss that is not convex, or if arguments are given,
        such as ``k``, the spectrum is estimated: see ``Operator.spectrum``. The estimate's
        ``reason`` says why.
        """
        if not arguments and not options:
            try:
                return dual_spectrum(self)
            except NoDual as refusal:
                options = {"reason": str(refusal)}
        return super().spectrum(*arguments, **{"reason": ASKED, **options})

    @recordable
    def kernel(self) -> Tensor:
        """Return the neural tangent kernel J Jᵀ on the data, (N, N).

        J is the Jacobian of the predictions in the parameters. Rows and columns are the outputs of
        the first sample, of the second, and so on.

        Examples
        --------
        >>> import torch, hessence as hs
        >>> _ = torch.manual_seed(0)
        >>> layers = torch.nn.Linear(3, 50), torch.nn.Tanh(), torch.nn.Linear(50, 2)
        >>> data = torch.randn(4, 3).double(), torch.randn(4, 2).double()
        >>> G = hs.ggn(torch.nn.Sequential(*layers).double(), data)
        >>> G.kernel().shape, len(G.spectrum()), G.spectrum().rank()
        (torch.Size([8, 8]), 302, 8)
        """
        try:
            return kernel(self)
        except NoDual as refusal:
            raise ValueError(f"the kernel cannot be computed: {refusal}") from None

    @staticmethod
    def _moved(problem: Problem, batch: Any, there: ModelCopy) -> Sequence[Tensor]:
        inputs, target = batch
        criterion = problem.criterion
        assert isinstance(criterion, PairCriterion)
        here = problem.copy.run(predict, inputs)
        moved = there.run(predict, inputs).detach()
        pushed = criterion.hessian(here, target)(moved - here.detach())
        return derivatives(here, problem.copy.parameters.leaves, pushed)


def hessian(
    model: Any,
    data: Any,
    loss: Any = None,
    params: Any = None,
    reduction: Reduction | None = None,
    eval_mode: bool = False,
    memory: float | None = None,
    *,
    closure: bool | None = None,
    compile: bool = False,
    copy: bool = True,
) -> ModelHessian:
    r"""Return the Hessian of a model's loss on data, as an operator on flat parameter vectors.

    With batches b of total loss :math:`\ell_b` and count :math:`n_b` it is
    :math:`\nabla^2 \sum_b \ell_b / \sum_b n_b`: the Hessian of the loss on all data, however they
    are cut into batches. The model is copied, and so are the data as far as they fit into memory:
    the operator stays what it is while training goes on, and nothing ever touches the model.

    Parameters
    ----------
    model : torch.nn.Module
        The model, in float32 or float64. Dropout in training mode is refused, since a loss that
        changes from call to call has no Hessian; so is batch normalisation in training mode, unless
        all data are one batch.
    data : (x, y), DataLoader, Dataset, dict, or iterable of batches
        All data at once, as a tuple or a dictionary, or batches that can be read again and again.
        The first dimension counts samples. An input may be a tensor, a tuple of arguments or a
        dictionary of them. With a closure, batches may be anything. Every pass must have the same
        batches; what a loader draws from PyTorch's random numbers, such as an order, is the same on
        every pass.
    loss : optional
        One of

        - a ``torch.nn`` loss, with its reduction, weights and ignored targets;
        - ``"mse"`` or None for ½ E‖f − y‖², or another of this library's names;
        - a function of (prediction, target);
        - a closure ``loss(model, batch)``, which uses the model that it is given.

        A function is taken for a closure if batches are not pairs (input, target); where they are,
        say ``closure=True``. Functions and closures return a mean over the samples of the batch, a
        sum, one number for each sample, of which the mean is taken, or a pair (mean, weight), the
        weight being how many the mean is over.
    params : optional
        Patterns of names, such as ``"blocks.*.attn.*"``, parts of the model, such as
        ``model.head``, or tensors; by default all parameters that require gradients.
    reduction : {"mean", "sum"}, optional
        What a function or closure returns for a batch. One batch with all data needs none, and
        PyTorch's losses know theirs.
    eval_mode : bool
        Run the copy in evaluation mode, whatever mode the model is in.
    memory : float, optional
        How many bytes of data, and how many of graphs, to keep from product to product; what does
        not fit is read or computed again each time. By default half of what is free.
    closure : bool, optional
        Whether `loss` is a closure, where batches are pairs.
    compile : bool
        Compile the products with ``torch.compile``: takes some ten seconds to minutes, and pays
        after hundreds to thousands of products of a transformer, and never for plain chains of
        linear layers (see the benchmarks).
    copy : bool
        Work on a copy of the model. False works on the model itself, for one that cannot be
        copied: it must then not be used or trained while the operator multiplies.

    Returns
    -------
    ModelHessian
        With ``@``, ``shape``, ``dense()``, ``to_scipy()``, ``check()``, ``ggn``, ``functional``,
        ``restrict(params)``, ``split(vector)``, ``join(tensors)``, ``loss()`` and ``gradient()``.

    Notes
    -----
    Columns V go through a graph at once if it holds at most 2 MB (64 MB on an accelerator), and one
    by one if it is larger, since that is then faster. Compiled products are made one by one.

    Under ``torch.distributed`` each process gives its own share of the data, and all get the
    product of the whole; they must multiply by the same vectors, as the solvers of this library do.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> H = hs.hessian(model, (torch.randn(50, 3), torch.randn(50, 1)), torch.nn.MSELoss())
    >>> H.shape, (H @ torch.ones(41)).shape
    ((41, 41), torch.Size([41]))
    >>> H.check().passed
    True
    >>> H.restrict("2").shape
    (9, 9)
    """
    problem = Problem(
        model, data, loss, params, reduction, eval_mode, memory, closure, compile, copy
    )
    build = partial(HessianGraph, problem.copy, problem.criterion)
    return ModelHessian(problem, problem.graphs(build, functional=True))


def ggn(
    model: Any,
    data: Any,
    loss: Any = None,
    params: Any = None,
    reduction: Reduction | None = None,
    eval_mode: bool = False,
    memory: float | None = None,
    *,
    closure: bool | None = None,
    compile: bool = False,
    copy: bool = True,
) -> ModelGgn:
    r"""Return the Gauss–Newton matrix :math:`\sum J^\top \nabla^2\ell(f) J` of a model's loss.

    It is the Hessian of the loss with the model linearised, and positive semi-definite if the loss
    is convex in the prediction. The loss' own Hessian is in closed form for squared error,
    cross-entropy and binary cross-entropy, and exact by automatic differentiation for others.

    Parameters and result are as for ``hs.hessian``; a closure is refused, since it does not tell
    where the model ends and the loss begins. ``G.spectrum()`` has every eigenvalue, exactly, up to
    4096 predicted numbers; ``G.kernel()`` is the neural tangent kernel.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    >>> data = torch.randn(50, 3), torch.randint(4, (50,))
    >>> G = hs.ggn(model, data, torch.nn.CrossEntropyLoss())
    >>> bool(torch.linalg.eigvalsh(G.dense()).min() > -1e-6)
    True
    """
    problem = Problem(
        model, data, loss, params, reduction, eval_mode, memory, closure, compile, copy
    )
    return ModelGgn(problem, _ggn_graphs(problem))


def _ggn_graphs(problem: Problem) -> Graphs:
    criterion = problem.criterion
    if not isinstance(criterion, PairCriterion):
        raise ValueError(
            "loss must be a loss of (prediction, target) for the Gauss–Newton matrix; a closure "
            "does not tell where the model ends and the loss begins."
        )
    return problem.graphs(partial(GgnGraph, problem.copy, criterion), functional=False)
