"""Common operations of models with their second derivatives written out.

A product with a Hessian is a backward pass through a recorded gradient. PyTorch composes the second
derivatives of activations, layer norms and softmaxes from dozens of passes over their inputs, and
repeats for every vector what depends on no vector. Here each operation is a pair of
:class:`torch.autograd.Function`: the operation itself, and its *slope*, the function that its
backward pass computes, which also stores what the slope's own backward pass will need.

Third derivatives, which a loss needs that has derivatives of the model in it, are left to PyTorch:
see :func:`~hessence.models.kernels.higher_order.pull_back_through_slope`.
"""
