"""Operations with second derivatives written out, beside PyTorch's own in double precision."""

import copy
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessence as hs
from hessence.models.exact_kernels import ExactKernels
from tests.models.oracle import assert_same, dense_hessian, finite_differences

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


def numbers(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def attend_to_the_past(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)


def attend_with_bias(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def attend_where_allowed(q, k, v):
    """Nothing is allowed for the third query."""
    allowed = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=bool)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


LABELS = torch.tensor([[1, 0, -100], [3, 3, 2]])


def entropy(z):
    return F.cross_entropy(z, LABELS)


def weighted_entropy(z):
    weights = torch.tensor([1.0, 0.5, 3.0, 2.0], dtype=torch.float64)
    return F.cross_entropy(z, LABELS.abs() % 97, weights, ignore_index=3, reduction="sum")


OPERATIONS = {
    "log softmax": (lambda z: F.log_softmax(z, dim=-1), [(4, 6)]),
    "log softmax of columns": (lambda z: z.log_softmax(0), [(4, 6)]),
    "log softmax by name": (lambda z: torch.log_softmax(input=z, dim=-1), [(4, 6)]),
    "cross-entropy": (entropy, [(2, 4, 3)]),
    "weighted cross-entropy": (weighted_entropy, [(2, 4, 3)]),
    "cross-entropies": (lambda z: F.cross_entropy(z, LABELS[0], reduction="none"), [(3, 4)]),
    "cross-entropy of one": (lambda z: F.cross_entropy(z, torch.tensor(2)), [(4,)]),
    "gelu": (F.gelu, [(5, 7)]),
    "gelu by name": (lambda z: F.gelu(input=z), [(5, 7)]),
    "tanh gelu": (lambda z: F.gelu(z, approximate="tanh"), [(5, 7)]),
    "silu": (F.silu, [(5, 7)]),
    "mish": (F.mish, [(5, 7)]),
    "softmax": (lambda z: F.softmax(z, dim=-1), [(4, 6)]),
    "softmax of columns": (lambda z: z.softmax(0), [(4, 6)]),
    "softmax by name": (lambda z: torch.softmax(input=z, dim=-1), [(4, 6)]),
    "softmax of a cube": (lambda z: torch.softmax(z, dim=1), [(2, 4, 3)]),
    "layer norm": (lambda x: F.layer_norm(x, (6,)), [(3, 4, 6)]),
    "layer norm by name": (
        lambda x: torch.layer_norm(input=x, normalized_shape=(6,), cudnn_enable=False),
        [(3, 6)],
    ),
    "scaled layer norm": (lambda x, w: F.layer_norm(x, (6,), w), [(3, 6), (6,)]),
    "affine layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [(3, 6), (6,), (6,)]),
    "rough layer norm": (
        lambda x, w, b: F.layer_norm(x, (6,), w, b, 3.0),
        [(3, 6), (6,), (6,)],
    ),
    "layer norm of planes": (
        lambda x, w, b: F.layer_norm(x, (3, 2), w, b),
        [(4, 3, 2), (3, 2), (3, 2)],
    ),
    "attention": (attend, [(2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2)]),
    "causal attention": (attend_to_the_past, [(2, 4, 5), (2, 4, 5), (2, 4, 3)]),
    "causal attention, more keys": (attend_to_the_past, [(2, 3, 5), (2, 6, 5), (2, 6, 3)]),
    "attention where allowed": (attend_where_allowed, [(2, 4, 5), (2, 4, 5), (2, 4, 3)]),
    "attention with a bias": (attend_with_bias, [(2, 4, 5), (2, 4, 5), (2, 4, 3), (4, 4)]),
}


def product(operation, inputs, weights, directions, *, written_out, batched=False):
    """Differentiate ½⟨weights, operation²⟩ twice, as a product does."""
    leaves = [i.clone().requires_grad_() for i in inputs]
    kernels = ExactKernels(nn.Identity())
    if written_out:
        with kernels.used():
            value = operation(*leaves)
    else:
        with sdpa_kernel(SDPBackend.MATH):
            value = operation(*leaves)
    total = (weights * value * value).sum() / 2 + (weights * value).sum()
    slopes = torch.autograd.grad(total, leaves, create_graph=True)
    images = torch.autograd.grad(
        slopes, leaves, directions, is_grads_batched=batched, materialize_grads=not batched
    )
    return value.detach(), [s.detach() for s in slopes], images


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_value_slope_and_product_are_pytorchs(name, scale):
    operation, shapes = OPERATIONS[name]
    inputs = [numbers(*s, seed=i, scale=scale) for i, s in enumerate(shapes)]
    directions = [numbers(*s, seed=10 + i) for i, s in enumerate(shapes)]
    weights = numbers(*operation(*inputs).shape, seed=20)
    ours = product(operation, inputs, weights, directions, written_out=True)
    theirs = product(operation, inputs, weights, directions, written_out=False)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-14)
    for mine, other in zip(ours[1] + list(ours[2]), theirs[1] + list(theirs[2]), strict=True):
        assert (mine - other).abs().max() <= 1e-11 * (1 + other.abs().max())


@pytest.mark.parametrize("name", OPERATIONS)
def test_many_vectors_at_once_are_the_same_as_one_by_one(name):
    operation, shapes = OPERATIONS[name]
    inputs = [numbers(*s, seed=i) for i, s in enumerate(shapes)]
    weights = numbers(*operation(*inputs).shape, seed=20)
    rows = [[numbers(*s, seed=10 * r + i) for i, s in enumerate(shapes)] for r in range(3)]
    several = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    *_, together = product(operation, inputs, weights, several, written_out=True, batched=True)
    for r, row in enumerate(rows):
        *_, alone = product(operation, inputs, weights, row, written_out=True)
        for mine, other in zip(together, alone, strict=True):
            torch.testing.assert_close(mine[r], other, rtol=1e-12, atol=1e-12)


def test_a_shift_without_a_scale():
    """PyTorch's own layer norm has no second derivative there."""
    x, b = numbers(3, 6), numbers(6, seed=1)
    directions = [numbers(3, 6, seed=10), numbers(6, seed=11)]
    weights = numbers(3, 6, seed=20)
    ours = product(
        lambda x, b: F.layer_norm(x, (6,), None, b), [x, b], weights, directions, written_out=True
    )
    theirs = product(
        lambda x, b: F.layer_norm(x, (6,)) + b, [x, b], weights, directions, written_out=False
    )
    for mine, other in zip([ours[0], *ours[1], *ours[2]], [theirs[0], *theirs[1], *theirs[2]],
                           strict=True):  # fmt: skip
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"reduction": "most"}, "not a valid value for reduction"),
        ({"weight": torch.ones(9, dtype=torch.float64)}, "for all 4 classes"),
    ],
)
def test_what_pytorch_refuses_is_refused(options, sentence):
    logits = numbers(3, 4).requires_grad_()
    with (
        ExactKernels(nn.Identity()).used(),
        pytest.raises((ValueError, RuntimeError), match=sentence),
    ):
        F.cross_entropy(logits, torch.tensor([0, 1, 2]), **options)


WRITTEN_OUT = {f"_{name}Backward" for name in ("Activation", "LayerNorm", "LogSoftmax", "Softmax")}


@pytest.mark.parametrize("name", OPERATIONS)
def test_stand_ins_are_used(name):
    """The tests above would pass as well if PyTorch's own operations were called."""
    operation, shapes = OPERATIONS[name]
    leaves = [numbers(*s).requires_grad_() for s in shapes]
    with ExactKernels(nn.Identity()).used():
        assert _nodes(operation(*leaves)) & WRITTEN_OUT


def _nodes(value):
    found, todo = set(), [value.grad_fn]
    while todo:
        node = todo.pop()
        found.add(type(node).__name__)
        todo += [n for n, _ in node.next_functions if n is not None]
    return found


class Everything(nn.Module):
    """All written-out operations in a row."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.inward, self.norm, self.outward = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)
        self.double()

    def forward(self, x):
        z = self.norm(F.gelu(self.inward(x)))
        z = z + F.scaled_dot_product_attention(z, z, z, is_causal=True)
        return self.outward(F.silu(z) * z.softmax(-1) + z.log_softmax(-2))


def gradient_penalty(model, batch):
    """A loss with first derivatives of the model in it."""
    x = batch[0].clone().requires_grad_()
    value = model(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return (slope**2).sum() + ((value - batch[1]) ** 2).sum()


def transformed_penalty(model, batch):
    """The same by torch.func, whose transformations PyTorch's custom functions do not take."""
    x = batch[0]
    slope = torch.func.grad(lambda t: model(t).sum())(x)
    return (slope**2).sum() + ((model(x) - batch[1]) ** 2).sum()


def forward_penalty(model, batch):
    """A loss with a derivative in forward mode in it."""
    x = batch[0]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        moved = F.gelu(model.inward(dual)) * F.silu(dual.sum())
        push = torch.autograd.forward_ad.unpack_dual(moved).tangent
    return (push**2).sum() + ((model(x) - batch[1]) ** 2).sum()


@pytest.mark.parametrize("loss", [gradient_penalty, transformed_penalty, forward_penalty])
def test_losses_with_derivatives_in_them(loss):
    """Against finite differences, since PyTorch's third derivative of layer norm is wrong."""
    model = Everything()
    data = (numbers(2, 3, 3, seed=1), numbers(2, 3, 1, seed=2))
    with sdpa_kernel(SDPBackend.MATH):
        expected = finite_differences(lambda: loss(model, data), model.parameters(), 1e-4)
    assert_same(hs.hessian(model, [data], loss).dense(), expected, 1e-9)


class Pushed(nn.Module):
    """A derivative of a layer norm in forward mode."""

    def __init__(self, norm):
        super().__init__()
        self.inward, self.norm = Everything().inward, norm

    def forward(self, x):
        return torch.func.jvp(lambda t: self.norm(self.inward(t)), (x,), (torch.ones_like(x),))[1]


def test_layer_norm_in_forward_mode():
    """Against its definition, since PyTorch's own is differentiated wrongly there as well."""

    def defined(z):
        away = z - z.mean(-1, keepdim=True)
        return away / (away.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    x, y = numbers(5, 3, seed=1), numbers(5, 4, seed=2)
    model = Pushed(defined)
    expected = dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters())
    found = hs.hessian(Pushed(lambda z: F.layer_norm(z, (4,))), (x, y), nn.MSELoss()).dense()
    assert_same(found, expected, 1e-11)


COMPILED = pytest.param({"compile": True}, marks=[
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
])  # fmt: skip


@pytest.mark.parametrize("options", [{"mode": "vectors"}, {"mode": "blocks"}, COMPILED])
def test_a_model_of_everything(options):
    model = Everything()
    x, y = (numbers(2, 3, 3, seed=1), numbers(2, 3, 1, seed=2))
    expected = dense_hessian(
        lambda: F.mse_loss(model(x), y, reduction="sum") / 4, model.parameters()
    )
    vectors = numbers(len(expected), 2)
    H = hs.hessian(model, (x, y), "mse", **options)
    assert_same(H @ vectors, expected @ vectors, 1e-11)


def test_hard_sigmoids():
    """PyTorch has no second derivative of them."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Hardsigmoid(), nn.Tanh(), nn.Linear(3, 1)).double()
    x, y = numbers(9, 2), numbers(9, 1)
    expected = finite_differences(lambda: F.mse_loss(model(x), y), model.parameters())
    assert_same(hs.hessian(model, (x, y), nn.MSELoss()).dense(), expected, 1e-7)


def test_embeddings_that_weigh_words_by_their_number():
    words, y = torch.tensor([[0, 1, 1], [2, 1, 0]]), numbers(2, 2)
    plain = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Tanh(), nn.Linear(6, 2)).double()
    weighing = copy.deepcopy(plain)
    weighing[0].scale_grad_by_freq = True
    found, expected = (hs.hessian(m, (words, y), nn.MSELoss()).dense() for m in (weighing, plain))
    assert_same(found, expected)
    assert weighing[0].scale_grad_by_freq
