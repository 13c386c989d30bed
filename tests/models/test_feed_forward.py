"""Products that are written out for plain chains, against automatic differentiation."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import hessence as hs
from hessence.models._feed_forward import ELEMENTWISE, Chain, FeedForwardGraph
from tests.models.alive import bytes_alive
from tests.models.oracle import dense_hessian


def hessian_of(model, total):
    return dense_hessian(lambda: total, model.parameters())


def relative(found, truth):
    return float((found - truth).abs().max() / truth.abs().max())


def is_written_out(H):
    return isinstance(H._graphs.first()[0], FeedForwardGraph)


CHAINS = {
    "tanh": lambda: nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)
    ),
    "one layer": lambda: nn.Linear(4, 3),
    "no biases": lambda: nn.Sequential(
        nn.Linear(4, 5, bias=False), nn.GELU(), nn.Linear(5, 3, bias=False)
    ),
    "nested, idle layers": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(4, 5), nn.Identity()), nn.SiLU(), nn.Sequential(nn.Linear(5, 3))
    ),
    "an activation at either end": lambda: nn.Sequential(
        nn.Sigmoid(), nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3), nn.Tanh()
    ),
    "two activations in a row": lambda: nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.ELU(), nn.Linear(5, 3)
    ),
    "in place": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
    "linear only": lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3)),
}

LOSSES = {
    "squares": nn.MSELoss(),
    "sum": nn.MSELoss(reduction="sum"),
    "huber": nn.HuberLoss(delta=0.3),
    "own": lambda f, y: torch.cosh(f - y).mean(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CHAINS)
def test_products(name, loss):
    torch.manual_seed(0)
    model = CHAINS[name]().double()
    x = torch.randn(20, 4, dtype=torch.float64)
    y = torch.randn(20, 3, dtype=torch.float64)
    H = hs.hessian(model, (x, y), LOSSES[loss])
    assert is_written_out(H)
    truth = hessian_of(model, LOSSES[loss](model(x), y))
    assert relative(H.dense(), truth) < 1e-13
    reduction = "mean" if loss == "own" else None
    halves = [(x[:7], y[:7]), (x[7:], y[7:])]
    cut = hs.hessian(model, halves, LOSSES[loss], reduction=reduction)
    assert relative(cut.dense(), truth) < 1e-13
    assert H.check().passed
    columns = torch.randn(H.shape[0], 3, dtype=torch.float64)
    assert relative(H @ columns, truth @ columns) < 1e-13


@pytest.mark.parametrize("name", CHAINS)
def test_gauss_newton(name):
    torch.manual_seed(1)
    model = CHAINS[name]().double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    G = hs.ggn(model, (x, y), nn.CrossEntropyLoss())
    assert is_written_out(G)
    # The Hessian of the loss with the model linearised at its parameters.
    here = [p.detach().clone() for p in model.parameters()]
    names = [n for n, _ in model.named_parameters()]

    def linearised(*moved):
        f = lambda *p: torch.func.functional_call(model, dict(zip(names, p, strict=True)), (x,))  # noqa: E731
        jacobians = torch.autograd.functional.jacobian(f, tuple(here))
        motion = sum(
            torch.tensordot(j, m - h, dims=h.ndim)
            for j, m, h in zip(jacobians, moved, here, strict=True)
        )
        return nn.functional.cross_entropy(f(*here).detach() + motion, y)

    blocks = torch.autograd.functional.hessian(linearised, tuple(here))
    truth = torch.cat(
        [
            torch.cat([b.reshape(h.numel(), -1) for b in row], dim=1)
            for row, h in zip(blocks, here, strict=True)
        ]
    )
    assert relative(G.dense(), truth) < 1e-13
    assert G.check().passed


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_every_activation(kind):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 5), kind(), nn.Linear(5, 3)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    H = hs.hessian(model, (x, y), nn.CrossEntropyLoss())
    assert is_written_out(H)
    assert relative(H.dense(), hessian_of(model, nn.CrossEntropyLoss()(model(x), y))) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_curve_that_bends_where_it_is_level(dtype):
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(4, 5), nn.Hardswish(), nn.Linear(5, 6), nn.Hardswish(), nn.Linear(6, 3)
    ).to(dtype)
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 0.0, -1.5  # the lowest point of the curve
        model[2].weight[:2], model[2].bias[:2] = 0.0, -1.5
    x, y = torch.randn(20, 4, dtype=dtype), torch.randn(20, 3, dtype=dtype)
    H = hs.hessian(model, (x, y), nn.MSELoss())
    assert is_written_out(H)
    truth = hessian_of(model, nn.MSELoss()(model(x), y))
    level = slice(0, 4)  # the weights before a unit that is at the lowest point
    assert truth[level, level].abs().max() > 1e-3
    assert relative(H.dense(), truth) < 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*ELEMENTWISE, lambda: nn.GELU(approximate="tanh")])
def test_units_far_from_zero(kind, dtype):
    """Where slopes underflow before what they are made of."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(1, 1), kind(), nn.Linear(1, 1)).to(dtype)
    for z in (-745.0, -103.0, -40.0, -21.0, -14.0, -13.0, -10.5, -9.8, -5.0, 0.0, 5.0, 20.0, 80.0):
        with torch.no_grad():
            model[0].weight.fill_(0.0), model[0].bias.fill_(z)
        x, y = torch.ones(4, 1, dtype=dtype), torch.ones(4, 1, dtype=dtype)
        truth = hessian_of(model, nn.MSELoss()(model(x), y))
        found = hs.hessian(model, (x, y), nn.MSELoss()).dense()
        assert relative(found, truth) < 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("loss", [None, "huber", nn.BCEWithLogitsLoss(pos_weight=torch.ones(1))])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_targets_in_double_precision(loss, operator):
    torch.manual_seed(5)
    model, x = CHAINS["tanh"](), torch.randn(20, 4)
    y = torch.rand(20, 3)
    wide = operator(model, (x, y.double()), loss)
    assert wide.dense().dtype == torch.float32
    assert relative(wide.dense(), operator(model, (x, y), loss).dense()) < 1e-6
    part = operator(model, (x, y.double()), loss, params="*.bias")
    assert (part @ torch.ones(part.shape[0])).dtype == torch.float32


def test_images_and_tokens():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(9, 3, 4, dtype=torch.float64), torch.randint(3, (9,))
    H = hs.hessian(model, (x, y), nn.CrossEntropyLoss())
    assert is_written_out(H)
    assert relative(H.dense(), hessian_of(model, nn.CrossEntropyLoss()(model(x), y))) < 1e-13
    tokens, targets = (torch.randn(6, 7, 4).double() for _ in range(2))
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    H = hs.hessian(model, (tokens, targets), nn.MSELoss())
    assert is_written_out(H)
    assert relative(H.dense(), hessian_of(model, nn.MSELoss()(model(tokens), targets))) < 1e-13


@pytest.mark.parametrize("params", ["0", "2", "4.weight", ["0.bias", "4.bias"], "*.bias"])
def test_some_parameters(params):
    torch.manual_seed(4)
    model = CHAINS["tanh"]().double()
    x, y = (torch.randn(20, n, dtype=torch.float64) for n in (4, 3))
    whole = hessian_of(model, nn.MSELoss()(model(x), y))
    H = hs.hessian(model, (x, y), nn.MSELoss(), params=params)
    assert is_written_out(H)
    places, start = [], 0
    for name, p in model.named_parameters():
        if name in H.parameters.names:
            places += range(start, start + p.numel())
        start += p.numel()
    truth = whole[places][:, places]
    assert relative(H.dense(), truth) < 1e-13
    block = hs.hessian(model, (x, y), nn.MSELoss()).restrict(params)
    assert relative(block.dense(), truth) < 1e-13


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def _shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def _hooked():
    model = CHAINS["tanh"]()
    model[0].register_forward_hook(lambda module, args, output: 2 * output)
    return model


@pytest.mark.parametrize(
    "make",
    [
        _shared,
        _hooked,
        lambda: Doubled(nn.Linear(4, 4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Flatten()),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(),
        lambda: nn.Sequential(nn.Tanh()),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
)
def test_anything_else_is_left_to_autodiff(make):
    assert Chain.read(make()) is None


def test_products_on_several_threads_do_not_meet():
    torch.manual_seed(3)
    model = CHAINS["tanh"]().double()
    x = torch.randn(500, 4, dtype=torch.float64)
    H = hs.hessian(model, (x, torch.randn(500, 3, dtype=torch.float64)), nn.MSELoss())
    assert is_written_out(H)
    vectors = torch.randn(60, H.shape[0], dtype=torch.float64)
    alone = [H @ v for v in vectors]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda v: H @ v, vectors))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("name", CHAINS)
def test_the_memory_that_terms_take_is_known_beforehand(name):
    model = CHAINS[name]()
    taken, told = [], []
    for samples in (1_000, 3_000):
        H = hs.hessian(model, (torch.randn(samples, 4), torch.randn(samples, 3)), nn.MSELoss())
        told.append(H._graphs._size(H.problem.batches.first))
        before = bytes_alive()
        H @ torch.ones(H.shape[0])
        taken.append(bytes_alive() - before)
        del H
    # The inputs count although they are there before, what the loss holds does not.
    one_tensor = (3_000 - 1_000) * 6 * 4
    assert abs((taken[1] - taken[0]) - (told[1] - told[0])) <= one_tensor


def test_parameters_that_take_no_part():
    torch.manual_seed(2)
    model, plain = CHAINS["tanh"]().double(), CHAINS["tanh"]().double()
    plain.load_state_dict(model.state_dict())
    model.register_parameter("idle", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    data = torch.randn(20, 4, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    for operator in (hs.hessian, hs.ggn):
        found = operator(model, data, nn.MSELoss()).dense()
        assert not found[:2].any()
        assert relative(found[2:, 2:], operator(plain, data, nn.MSELoss()).dense()) < 1e-13
        assert not operator(model, data, nn.MSELoss(), params="idle").dense().any()


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_a_loss_without_the_prediction(operator):
    model, x = CHAINS["tanh"](), torch.randn(20, 4)
    assert not operator(model, (x, x), lambda f, y: (y**2).mean()).dense().any()


def test_targets_in_another_precision():
    torch.manual_seed(4)
    model, x = CHAINS["tanh"](), torch.randn(20, 4)
    y = torch.softmax(torch.randn(20, 3, dtype=torch.float64), dim=1)
    found = hs.hessian(model, (x, y), nn.CrossEntropyLoss()).dense()
    assert relative(found, hessian_of(model, nn.CrossEntropyLoss()(model(x), y))) < 1e-5


def test_hooks_on_all_modules():
    torch.manual_seed(5)
    model = CHAINS["tanh"]().double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, _, out: 2 * out if isinstance(module, nn.Linear) else None
    )
    try:
        found = hs.hessian(model, (x, y), nn.MSELoss()).dense()
        truth = hessian_of(model, nn.MSELoss()(model(x), y))
    finally:
        hook.remove()
    assert relative(found, truth) < 1e-13


class Clipping(nn.Module):
    """Writes to its inputs where they are large, which is in some batches only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        if bool((x > 2).any()):
            x[x > 2] = 2.0
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda model, b: nn.MSELoss()(model(b[0]), b[1])])
def test_batches_of_which_the_model_writes_to_some(loss):
    torch.manual_seed(6)
    model, x, y = Clipping().double(), torch.randn(8, 3).double(), torch.randn(8, 2).double()
    x[4:] += 3
    before = x.clone()
    own = not isinstance(loss, nn.Module)
    data = [(x[:4], y[:4]), (x[4:], y[4:])]
    H = hs.hessian(model, data, loss, reduction="mean", closure=own)
    expected = hessian_of(model, nn.MSELoss()(model(x.clone()), y))
    assert relative(H.dense(), expected) < 1e-13
    assert torch.equal(x, before)


@pytest.mark.parametrize("tail", [[], [nn.LayerNorm(3)]], ids=["plain", "normed"])
@pytest.mark.parametrize("kind", [nn.SiLU, nn.ReLU])
def test_inputs_that_the_model_writes_to(kind, tail):
    """Every run gets the data as they were, and so does the user."""
    torch.manual_seed(6)
    model = nn.Sequential(kind(inplace=True), nn.Linear(4, 3), *tail).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    kept = x.clone()
    truth = hessian_of(model, nn.MSELoss()(model(x.clone()), y))
    for data in ((x, y), [(x[:7], y[:7]), (x[7:], y[7:])]):
        H = hs.hessian(model, data, nn.MSELoss())
        assert relative(H.dense(), truth) < 1e-12
        assert H.loss() == H.loss()
        assert H.check().passed
        hs.spectrum(model, data, nn.MSELoss())
        assert torch.equal(x, kept)
