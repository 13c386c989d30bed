"""Models put together at random from unusual parts, against finite differences of the gradient."""

import warnings

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import hessence as hs
from tests.models.untouched import assert_untouched, state

SAMPLES, TOKENS, WIDTH = 6, 3, 4


class Calling(nn.Module):
    """Calls a function of the module inside of it and of the signal (n, tokens, width)."""

    def __init__(self, inner, call):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, z):
        return self.call(self.inner, z)


class Counting(nn.Module):
    """Keeps a count in a buffer, which it uses, and a log of what it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(()))
        self.log, self.last = [], None

    def forward(self, z):
        self.count += 1
        self.log.append(z)
        self.last = z
        return z / self.count


def hooked():
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_hook(lambda module, args, output: output.sin())
    return layer


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))


def attended(inner, z):
    q, k, v = inner(z).chunk(3, dim=-1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)


def masked(inner, z):
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(inner(z), z, z, attn_mask=mask)


def convolved(inner, z):
    return inner(z.mT).mT


def scattered(inner, z):
    z = inner(z)
    places = torch.tensor([[[0, 1, 1, 3]]]).expand_as(z)
    return torch.zeros_like(z).scatter_add(-1, places, z) + z.cumsum(1).flip(1)


PARTS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "relu in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(inplace=True)),
    "softplus": lambda: nn.Softplus(beta=3),
    "hard sigmoid": nn.Hardsigmoid,
    "softmax": lambda: nn.Softmax(-1),
    "prelu": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.PReLU()),
    "glu": lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "layer norm without shift": lambda: nn.LayerNorm(WIDTH, bias=False),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "group norm": lambda: Calling(nn.GroupNorm(2, WIDTH), convolved),
    "batch norm": lambda: Calling(nn.BatchNorm1d(WIDTH), convolved).eval(),
    "instance norm": lambda: Calling(nn.InstanceNorm1d(WIDTH, affine=True), convolved),
    "dropout": lambda: nn.Dropout(0.0),
    "idle dropout": lambda: nn.Dropout(0.5).eval(),
    "convolution": lambda: Calling(nn.Conv1d(WIDTH, WIDTH, 3, padding=1), convolved),
    "transposed": lambda: Calling(nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1), convolved),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "old weight norm": old_weight_norm,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(
        nn.Linear(WIDTH, WIDTH)
    ).eval(),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)),
    "attention": lambda: Calling(nn.Linear(WIDTH, 3 * WIDTH), attended),
    "masked attention": lambda: Calling(nn.Linear(WIDTH, WIDTH), masked),
    "heads": lambda: Calling(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        lambda inner, z: inner(z, z, z, need_weights=False)[0],
    ),
    "heads with weights": lambda: Calling(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_bias_kv=True),
        lambda inner, z: inner(z, z, z)[0] + inner(z, z, z)[1].square().sum((1, 2), keepdim=True),
    ),
    "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 6, 0.0, "gelu", batch_first=True),
    "first norm": lambda: nn.TransformerEncoderLayer(
        WIDTH, 2, 6, 0.0, "gelu", batch_first=True, norm_first=True
    ),
    "gru": lambda: Calling(nn.GRU(WIDTH, WIDTH, batch_first=True), lambda inner, z: inner(z)[0]),
    "lstm": lambda: Calling(
        nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True),
        lambda inner, z: inner(z)[0],
    ),
    "rnn": lambda: Calling(nn.RNN(WIDTH, WIDTH, 2, batch_first=True), lambda inner, z: inner(z)[0]),
    # Powers of powers would overflow.
    "bilinear": lambda: Calling(
        nn.Bilinear(WIDTH, WIDTH, WIDTH), lambda inner, z: inner(z, z).tanh()
    ),
    "counting": Counting,
    "hooked": hooked,
    "scattered": lambda: Calling(nn.Linear(WIDTH, WIDTH), scattered),
    "sorted": lambda: Calling(nn.Linear(WIDTH, WIDTH), lambda inner, z: inner(z).sort(-1)[0]),
    "solved": lambda: Calling(
        nn.Linear(WIDTH, WIDTH),
        lambda inner, z: torch.linalg.solve(4 * torch.eye(TOKENS).to(z) + z @ z.mT, inner(z)),
    ),
    "waves": lambda: Calling(
        nn.Linear(WIDTH, WIDTH), lambda inner, z: torch.fft.fft(inner(z), dim=1).real
    ),
    "norms": lambda: Calling(nn.Linear(WIDTH, WIDTH), lambda inner, z: F.normalize(inner(z))),
    "einsum": lambda: Calling(
        nn.Linear(WIDTH, WIDTH),
        lambda inner, z: torch.einsum("nti,nsi,nsj->ntj", z, inner(z), z).tanh(),
    ),
}

ROUND = {
    "alone": lambda part: part,
    "beside": lambda part: Calling(part, lambda inner, z: z + inner(z)),
    "twice": lambda part: Calling(part, lambda inner, z: inner(inner(z))),
    "checkpoint": lambda part: Calling(
        part, lambda inner, z: checkpoint(inner, z, use_reentrant=False)
    ),
    "reentrant": lambda part: Calling(
        part, lambda inner, z: checkpoint(inner, z, use_reentrant=True)
    ),
}


class Model(nn.Module):
    """A row of parts between an input and an output layer."""

    def __init__(self, parts, frozen, tied):
        super().__init__()
        self.inward, self.parts = nn.Linear(3, WIDTH), nn.Sequential(*parts)
        self.outward = nn.Linear(WIDTH, 3)
        if tied:
            self.outward.weight = nn.Parameter(self.inward.weight.detach().clone().T.contiguous())
            self.again = self.outward
        self.double()
        if frozen:
            self.inward.bias.requires_grad_(False)

    def forward(self, x):
        return self.outward(self.parts(self.inward(x)))[:, 0]


LOSSES = {
    "squares": (nn.MSELoss(), True, {}),
    "classes": (nn.CrossEntropyLoss(label_smoothing=0.1), False, {}),
    "function": (lambda f, y: (f - y).pow(4).mean(1), True, {}),
    "closure": (
        lambda model, batch: (model(batch[0]) - batch[1]).cosh().mean(),
        True,
        {"closure": True, "reduction": "mean"},
    ),
}


@given(
    st.lists(st.tuples(st.sampled_from(sorted(PARTS)), st.sampled_from(sorted(ROUND))), max_size=3),
    st.sampled_from(sorted(LOSSES)),
    st.sampled_from(["whole", "batches", "loader"]),
    st.sampled_from([None, 0]),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 2**16),
)
def test_any_model(names, kind, form, memory, options, seed):
    torch.manual_seed(seed)
    # A checkpoint that runs a count again has gradients that are those of no loss.
    parts = [ROUND["alone" if name == "counting" else how](PARTS[name]()) for name, how in names]
    model = Model(parts, *options)
    loss, real, said = LOSSES[kind]
    x = torch.randn(SAMPLES, TOKENS, 3, dtype=torch.float64)
    y = torch.randn(SAMPLES, 3, dtype=torch.float64) if real else torch.randint(3, (SAMPLES,))
    data = {
        "whole": (x, y),
        "batches": [(x[:2], y[:2]), (x[2:], y[2:])],
        "loader": DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True),
    }[form]
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    v, before = torch.randn(size, dtype=torch.float64), state(model)
    H = hs.hessian(model, data, loss, memory=memory, **said)
    found, checked = H @ v, H.check()
    assert_untouched(model, before)
    expected, error = along(model, x, y, loss, said, v)
    assert (found - expected).norm() <= 1e-6 * (1 + found.norm()) + 10 * error
    assert checked.passed, checked.message


def along(model, x, y, loss, said, v):
    """The derivative of the gradient along v by central differences, and how far it may be off."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    counts = [m for m in model.modules() if isinstance(m, Counting)]

    def gradient(step):
        place = 0
        with torch.no_grad():
            for p in parameters:
                p += step * v[place : place + p.numel()].reshape(p.shape)
                place += p.numel()
        for count in counts:
            count.count.fill_(1)
        with sdpa_kernel(SDPBackend.MATH):
            value = loss(model, (x, y)) if said else loss(model(x), y).mean()
            value.backward()
        found = torch.cat([torch.zeros_like(p).reshape(-1) if p.grad is None
                           else p.grad.reshape(-1) for p in parameters])  # fmt: skip
        for p in parameters:
            p.grad = None
        return found

    def quotient(h):
        # Steps from where the last one has left the parameters.
        up = gradient(h)
        down = gradient(-2 * h)
        gradient(h)
        return (up - down) / (2 * h)

    coarse, fine = quotient(2e-4), quotient(1e-4)
    return fine + (fine - coarse) / 3, (fine - coarse).norm()
