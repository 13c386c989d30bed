"""What is called in place of PyTorch's own functions, and why: derivatives that are wrong there."""

import copy
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import hessence as hs
from hessence.models._exact_kernels import with_exact_kernels
from tests.models.oracle import assert_same, dense_hessian, finite_differences

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script")


def numbers(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


LAYER_NORMS = {
    "alone": (lambda x: F.layer_norm(x, (6,)), [(3, 4, 6)]),
    "by name": (
        lambda x: torch.layer_norm(input=x, normalized_shape=(6,), cudnn_enable=False),
        [(3, 6)],
    ),
    "scaled": (lambda x, w: F.layer_norm(x, (6,), w), [(3, 6), (6,)]),
    "affine": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [(3, 6), (6,), (6,)]),
    "rough": (lambda x, w, b: F.layer_norm(x, (6,), w, b, 3.0), [(3, 6), (6,), (6,)]),
    "of planes": (
        lambda x, w, b: F.layer_norm(x, (3, 2), w, b),
        [(4, 3, 2), (3, 2), (3, 2)],
    ),
}


def product(operation, inputs, weights, directions, *, replaced):
    """Differentiate ½⟨weights, operation²⟩ twice, as a product does."""
    leaves = [i.clone().requires_grad_() for i in inputs]
    value = with_exact_kernels(operation, *leaves) if replaced else operation(*leaves)
    total = (weights * value * value).sum() / 2 + (weights * value).sum()
    gradients = torch.autograd.grad(total, leaves, create_graph=True)
    images = torch.autograd.grad(gradients, leaves, directions, materialize_grads=True)
    return value.detach(), [g.detach() for g in gradients], images


@pytest.mark.parametrize("name", LAYER_NORMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_layer_norm_is_pytorchs(name, scale):
    operation, shapes = LAYER_NORMS[name]
    inputs = [numbers(*s, seed=i, scale=scale) for i, s in enumerate(shapes)]
    directions = [numbers(*s, seed=10 + i) for i, s in enumerate(shapes)]
    weights = numbers(*operation(*inputs).shape, seed=20)
    ours = product(operation, inputs, weights, directions, replaced=True)
    theirs = product(operation, inputs, weights, directions, replaced=False)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-14)
    for mine, other in zip(ours[1] + list(ours[2]), theirs[1] + list(theirs[2]), strict=True):
        assert (mine - other).abs().max() <= 1e-11 * (1 + other.abs().max())


def test_a_shift_without_a_scale():
    """PyTorch's own layer norm has no second derivative there."""
    x, b = numbers(3, 6), numbers(6, seed=1)
    directions = [numbers(3, 6, seed=10), numbers(6, seed=11)]
    weights = numbers(3, 6, seed=20)
    ours = product(
        lambda x, b: F.layer_norm(x, (6,), None, b), [x, b], weights, directions, replaced=True
    )
    theirs = product(
        lambda x, b: F.layer_norm(x, (6,)) + b, [x, b], weights, directions, replaced=False
    )
    for mine, other in zip([ours[0], *ours[1], *ours[2]], [theirs[0], *theirs[1], *theirs[2]],
                           strict=True):  # fmt: skip
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


class Everything(nn.Module):
    """What transformers are made of, in a row."""

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
    (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return (gradient**2).sum() + ((value - batch[1]) ** 2).sum()


def transformed_penalty(model, batch):
    """The same by torch.func."""
    x = batch[0]
    gradient = torch.func.grad(lambda t: model(t).sum())(x)
    return (gradient**2).sum() + ((model(x) - batch[1]) ** 2).sum()


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
    assert_same(hs.hessian(model, [data], loss, closure=True).dense(), expected, 1e-9)


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


@pytest.mark.parametrize("options", [{}, COMPILED])
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


class Attending(nn.Module):
    """Attention between checkpoints."""

    def __init__(self):
        super().__init__()
        self.inward, self.outward = Everything().inward, Everything().outward

    def forward(self, x):
        z = checkpoint(lambda t: F.gelu(self.inward(t)), x, use_reentrant=False)
        return self.outward(F.scaled_dot_product_attention(z, z, z))


def test_settings_of_the_process_outlast_no_run():
    """Runs in several threads neither take them from each other nor leave them behind."""
    torch.manual_seed(0)
    x, y = numbers(2, 3, 3, seed=1), numbers(2, 3, 1, seed=2)
    operators = [hs.hessian(Attending(), (x, y), nn.MSELoss(), memory=0) for _ in range(4)]
    v = numbers(operators[0].shape[0])
    expected = [H @ v for H in operators]

    def settings():
        cuda = torch.backends.cuda
        flags = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
        return *flags, torch.utils.checkpoint.CheckpointFunction

    before = settings()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: operators[i % 4] @ v, range(200)))
    assert settings() == before
    for i, image in enumerate(found):
        assert_same(image, expected[i % 4])


@pytest.mark.parametrize("options", [
    {}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": numbers(3, 3, seed=7)},
    {"attn_mask": torch.ones(3, 3, dtype=torch.bool).tril()},
    {"attn_mask": torch.tensor([[False] * 3, [True, False, True], [True] * 3])},
], ids=str)  # fmt: skip
def test_attention_is_pytorchs(options):
    q, k, v = (numbers(2, 2, 3, 4, seed=i) for i in range(3))
    ours = with_exact_kernels(lambda: F.scaled_dot_product_attention(q, k, v, **options))
    theirs = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


class Passing(TorchFunctionMode):
    """A mode of the user's that changes nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [lambda: torch.device("cpu"), Passing], ids=["device", "own"])
def test_attention_under_a_mode_of_the_users(mode):
    """Its functions name themselves to that mode, which must not lead back to PyTorch's kernel."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    data = numbers(2, 3, 4, seed=1), numbers(2, 3, 4, seed=2)
    H = hs.hessian(layer, data, nn.MSELoss())
    v = numbers(H.shape[0])
    with mode():
        inside = hs.hessian(layer, data, nn.MSELoss())
        assert_same(inside @ v, H @ v)
        assert inside.check().passed
