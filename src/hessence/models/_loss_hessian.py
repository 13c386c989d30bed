r"""Second derivatives of losses in the prediction, as they act on a direction.

Each function returns :math:`u \mapsto \nabla^2 \ell(z)\, u` for the *sum* of the loss over a batch
with predictions z; u has the shape of z, or further dimensions in front.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hessence.models._exact_kernels import with_exact_kernels
from hessence.models._parameters import irregular

LossHessian = Callable[[Tensor], Tensor]


def cross_entropy(loss: nn.CrossEntropyLoss, prediction: Tensor, target: Tensor) -> LossHessian:
    r"""Return :math:`s\,(\mathrm{diag}(p) - p p^\top)` for each position, p the softmax.

    With target probabilities t (one-hot, smoothed or given) and class weights w, the loss is
    :math:`-\sum_c w_c t_c \log p_c`, so :math:`s = \sum_c w_c t_c`, and 0 where ignored.
    """
    classes = 0 if prediction.ndim == 1 else 1
    logits = prediction.detach()
    p = torch.softmax(logits, dim=classes)
    weight = _class_mass(loss, logits, target, classes).unsqueeze(classes).to(p) * p
    # Counted from the end, so that directions may have more dimensions in front.
    axis = classes - logits.ndim
    likeliest = p.argmax(classes, keepdim=True)

    def apply(u: Tensor) -> Tensor:
        # Adding a number to all logits changes nothing. Taking off the change of the likeliest,
        # whose probability may be almost 1, leaves nothing that cancels.
        u = u - u.gather(axis, likeliest.expand(*u.shape[: u.ndim - p.ndim], *likeliest.shape))
        weighted = weight * u
        return torch.addcmul(weighted, p, weighted.sum(axis, keepdim=True), value=-1)

    return apply


def binary_cross_entropy_with_logits(
    loss: nn.BCEWithLogitsLoss, prediction: Tensor, target: Tensor
) -> LossHessian:
    """Return w (π y + 1 − y) σ(z) σ(−z), elementwise, with weights w and positive weights π."""
    z = prediction.detach()
    second = torch.sigmoid(z) * torch.sigmoid(-z)
    if loss.pos_weight is not None:
        second = second * (loss.pos_weight * target + 1 - target)
    if loss.weight is not None:
        second = second * loss.weight
    return lambda u: second * u


def binary_cross_entropy(loss: nn.BCELoss, prediction: Tensor, target: Tensor) -> LossHessian:
    """Return w (y / q² + (1 − y) / (1 − q)²), elementwise, for probabilities q."""
    q = prediction.detach()
    # A probability of exactly 0 or 1 costs nothing if it is right.
    second = torch.where(target > 0, target / q**2, 0) + torch.where(
        target < 1, (1 - target) / (1 - q) ** 2, 0
    )
    if loss.weight is not None:
        second = second * loss.weight
    return lambda u: second * u


def by_autograd(total: Callable[[Tensor], Tensor], prediction: Tensor) -> LossHessian:
    """Return the Hessian of any other loss by differentiating it twice."""
    z = prediction.detach().requires_grad_()

    def differentiated() -> Tensor | None:
        value = total(z)
        if not value.requires_grad:
            require_constant(total(z.detach() + irregular(z.detach())), value, "prediction")
            return None
        found: Tensor = torch.autograd.grad(value, z, create_graph=True, materialize_grads=True)[0]
        return found

    gradient = with_exact_kernels(differentiated)

    def apply(u: Tensor) -> Tensor:
        if gradient is None or not gradient.requires_grad:
            return torch.zeros_like(u)
        rows = u.reshape(-1, *z.shape)
        images = [
            torch.autograd.grad(gradient, z, row, retain_graph=True, materialize_grads=True)[0]
            for row in rows
        ]
        return torch.stack(images).reshape(u.shape)

    return apply


def sample_blocks(multiply: LossHessian, prediction: Tensor, samples: int) -> Tensor:
    """Return the matrix of each of so many samples, (n, K, K), if they do not depend on others."""
    count = prediction.numel() // samples
    found = prediction.new_empty(samples, count, count)
    for k in range(count):
        direction = prediction.new_zeros(samples, count)
        direction[:, k] = 1
        image = multiply(direction.reshape(prediction.shape))
        found[..., k] = image.detach().reshape(samples, count)
    return (found + found.mT) / 2


def require_constant(there: Tensor, here: Tensor, what: str) -> None:
    """Refuse a loss without a derivative that is another one where `what` has moved."""
    if not torch.equal(there.detach(), here.detach()):
        raise ValueError(
            f"loss has no derivative, but changes with the {what}: it was detached, or computed "
            "under torch.no_grad()."
        )


def _class_mass(loss: nn.CrossEntropyLoss, logits: Tensor, target: Tensor, classes: int) -> Tensor:
    """Return the mass s of every position, of the prediction's shape without the classes."""
    count = logits.shape[classes]
    weight = loss.weight if loss.weight is not None else logits.new_ones(count)
    smoothing = loss.label_smoothing
    if target.is_floating_point():
        smoothed = (1 - smoothing) * target + smoothing / count
        shape = [1] * logits.ndim
        shape[classes] = count
        return (weight.reshape(shape) * smoothed).sum(classes)
    kept = target != loss.ignore_index
    mass = (1 - smoothing) * weight[torch.where(kept, target, 0).long()] + smoothing * weight.mean()
    return torch.where(kept, mass, torch.zeros_like(mass))
