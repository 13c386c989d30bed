"""Little memory and other ways to multiply change the time, and not the answer."""

import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hessence as hs
from hessence.models import _products as products
from hessence.models._products import Graphs, HessianGraph
from tests.models.alive import bytes_alive
from tests.models.market import MODELS, numbers, problem
from tests.models.oracle import assert_same, dense_hessian


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("name", MODELS)
def test_columns_one_by_one_are_those_at_once(name, operator, monkeypatch):
    """These models are small: the tests of their matrices multiply many columns at once."""
    case = problem(name)
    expected = operator(case.model, case.data, case.loss).dense()
    monkeypatch.setattr(products, "AT_ONCE_BYTES", 0.0)
    H = operator(case.model, case.data, case.loss, memory=0)
    assert_same(H.dense(), expected)
    assert H.kept_graphs == 0


class Stubborn(torch.autograd.Function):
    """A cube whose derivatives look at numbers, which cannot be done for several at once."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context, slope):
        (x,) = context.saved_tensors
        return StubbornSlope.apply(slope, x)


class StubbornSlope(torch.autograd.Function):
    @staticmethod
    def forward(context, slope, x):
        context.save_for_backward(slope, x)
        return 3 * slope * x**2

    @staticmethod
    def backward(context, change):
        slope, x = context.saved_tensors
        if change.abs().max().item() == 0:
            return torch.zeros_like(slope), torch.zeros_like(x)
        return 3 * change * x**2, 6 * change * slope * x


class Cubed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(Stubborn.apply(self.first(x)))


@pytest.mark.parametrize("limit", [0.0, 2.0**21])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_what_cannot_be_done_at_once_is_done_one_by_one(limit, operator, monkeypatch):
    monkeypatch.setattr(products, "AT_ONCE_BYTES", limit)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x, y = Cubed().double(), numbers(40, 2), numbers(40, 1)
    plain = nn.Sequential(model.first, Cube(), model.last)
    expected = operator(plain, (x, y), nn.MSELoss()).dense()

    def loss(f, y):
        return nn.functional.mse_loss(f, y)

    for data in ((x, y), list(zip(x.split(13), y.split(13), strict=True))):
        for given in (nn.MSELoss(), loss):
            H = operator(model, data, given, reduction="mean")
            assert_same(H.dense(), expected)
            assert_same(H.dense(), expected)


class Cube(nn.Module):
    def forward(self, x):
        return x**3


@pytest.fixture
def batches():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).double()
        return model, [(numbers(50, 3), numbers(50, 2)) for _ in range(4)]


def closure(model, batch):
    """Batches of a closure are never merged, so that there is a graph for each."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def test_more_memory_keeps_more_graphs(batches):
    model, data = batches
    v = numbers(sum(p.numel() for p in model.parameters()))
    whole = hs.hessian(model, data, closure, reduction="mean", closure=True)
    expected = whole @ v
    assert whole.kept_graphs == len(data)
    kept = []
    for memory in range(0, 300_000, 10_000):
        H = hs.hessian(model, data, closure, reduction="mean", closure=True, memory=memory)
        for _ in range(2):
            assert_same(H @ v, expected)
        kept.append(H.kept_graphs)
    assert kept == sorted(kept)
    assert set(kept) == set(range(len(data) + 1))


def test_a_small_first_batch_is_no_measure_of_the_others(batches):
    """A graph of 50 samples takes some tens of kilobytes, one of 5000 a hundred times that."""
    model, _ = batches
    data = [(numbers(n, 3), numbers(n, 2)) for n in (2, 50, 5000, 5000)]
    H = hs.hessian(model, data, closure, reduction="mean", closure=True, memory=1e6)
    H @ torch.ones(H.shape[0], dtype=torch.float64)
    assert H.kept_graphs == 2


def test_views_of_a_large_tensor_do_not_count_as_all_of_it(batches):
    """Batches cut out of a hundred megabytes; the graphs are of some hundred kilobytes."""
    model, _ = batches
    x, y = torch.zeros(4_000_000, 3).double(), torch.zeros(4_000_000, 2).double()
    data = [(x[i : i + 50], y[i : i + 50]) for i in range(0, 200, 50)]
    H = hs.hessian(model, data, closure, reduction="mean", closure=True, memory=5e6)
    H @ torch.ones(H.shape[0], dtype=torch.float64)
    assert H.kept_graphs == len(data)


def test_there_is_one_copy_of_the_data():
    """However many operators there are, and whatever the size of their chunks."""
    model = nn.Sequential(nn.Linear(500, 1), nn.Tanh(), nn.Linear(1, 1)).double()
    x, y = numbers(1_000, 500), numbers(1_000, 1)
    before = bytes_alive()
    H = hs.hessian(model, DataLoader(TensorDataset(x, y), batch_size=16), nn.MSELoss())
    v = torch.ones(H.shape[0], dtype=torch.float64)
    images = [H @ v, H.ggn @ v, H.ggn @ v]
    assert all(bool(image.isfinite().all()) for image in images)
    assert bytes_alive() - before < 1.2 * x.nbytes


@pytest.mark.parametrize("size", [1, 3, 4, 64])
def test_chunks_do_not_depend_on_the_size_of_batches(size):
    """The weights take most of the memory of a graph, and do not grow with the samples."""
    model = nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Linear(400, 2)).double()
    x, y = numbers(64, 300), numbers(64, 2)
    data = list(zip(x.split(size), y.split(size), strict=True))
    H = hs.hessian(model, data, nn.MSELoss(), memory=1e8)
    _ = H @ torch.ones(H.shape[0], dtype=torch.float64)
    assert H.kept_graphs == 1


@pytest.mark.parametrize(("samples", "calls"), [(50, 1), (5000, 4)])
def test_columns_go_through_small_graphs_at_once(batches, samples, calls, monkeypatch):
    """The size of a graph decides, and never a clock."""
    made = []
    multiply = HessianGraph.multiply
    monkeypatch.setattr(
        HessianGraph, "multiply", lambda *a, **k: made.append(1) or multiply(*a, **k)
    )
    model, _ = batches
    H = hs.hessian(model, [(numbers(samples, 3), numbers(samples, 2))], closure, closure=True)
    _ = H @ numbers(H.shape[0], 4)
    assert len(made) == calls


def test_graphs_that_are_let_go(batches):
    model, data = batches
    H = hs.hessian(model, data, closure, reduction="mean", closure=True)
    v = numbers(H.shape[0])
    assert H.kept_graphs == 0
    first = H @ v
    block = H.restrict("0")
    block @ v[: block.shape[0]]
    assert H.kept_graphs == block.kept_graphs == len(data)
    H.release()
    assert H.kept_graphs == 0
    assert torch.equal(H @ v, first)
    assert H.kept_graphs == len(data)


def test_graphs_that_another_thread_lets_go_of(batches):
    class Fleeting(dict):
        def __contains__(self, key):
            was = super().__contains__(key)
            self.clear()
            return was

    H = hs.hessian(*batches)
    expected = H @ torch.ones(H.shape[0]).double()
    H._graphs._kept = Fleeting(H._graphs._kept)
    assert torch.equal(H @ torch.ones(H.shape[0]).double(), expected)


def test_graphs_of_an_earlier_state_are_let_go(batches):
    """By whichever operators share the copy that has loaded another state."""
    chain, data = batches
    for model in (chain, nn.Sequential(*chain, nn.LayerNorm(2)).double()):
        H = hs.hessian(model, data, nn.MSELoss())
        part, v = H.restrict("2"), numbers(H.shape[0])
        shared = [H, H.ggn, part, part.ggn]
        for operator in shared:
            operator @ v[: operator.shape[0]]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.1
        H.load(model)
        fresh = hs.hessian(model, data, nn.MSELoss())
        news = [fresh, fresh.ggn, fresh.restrict("2"), fresh.restrict("2").ggn]
        for operator, new in zip(shared, news, strict=True):
            w = v[: operator.shape[0]]
            assert_same(operator @ w, new @ w)


@pytest.mark.parametrize("memory", [0, 2_000, 3_500, 1e9])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_loaders_that_do_not_fit(batches, operator, memory):
    """The data take 8000 bytes: they are kept only with the last of these."""
    model, data = batches
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    assert 40 * len(x) == 8_000
    loss = nn.MSELoss()
    loader = DataLoader(TensorDataset(x, y), batch_size=30, shuffle=True)
    H = operator(model, loader, loss, memory=memory)
    expected = operator(model, (x, y), loss)
    v = numbers(H.shape[0], 3)
    assert_same(H @ v, expected @ v)
    assert_same(H @ v[:, 0], expected @ v[:, 0])
    assert (H.kept_graphs > 0) == (memory == 1e9)


def test_one_graph_at_a_time(batches):
    """What is not kept is gone before the next is built: two would need twice the memory."""
    model, data = batches
    alive, most = 0, 0

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return Watch.apply(self.inner(x))

    class Ghost:
        def __init__(self):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.ghost = Ghost()
            return x.clone()

        @staticmethod
        def backward(context, slope):
            return slope

    H = hs.hessian(Watched(), data, closure, reduction="mean", closure=True, memory=0)
    v = numbers(H.shape[0])
    H @ v
    most = 0
    H @ v
    assert most == 1
    assert alive == 0


PEAK = """
import sys, torch
from torch import nn
import hessence as hs

def peak():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(),
                      nn.Linear(400, 1))
few = hs.hessian(model, (torch.randn(8, 10), torch.randn(8, 1)), nn.MSELoss())
v = torch.randn(few.shape[0], 1)
few @ v, few.gradient(), few.loss()
x, y = torch.randn(20000, 10), torch.randn(20000, 1)
start = peak()
H = hs.hessian(model, (x, y), nn.MSELoss(), memory=float(sys.argv[1]))
for _ in range(2):
    H @ v
H.gradient(), H.loss(), H.check()
print(peak() - start, H.kept_graphs, float((H @ v).norm()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_the_peak_of_memory():
    """All graphs together take some 300 MB; with little memory there is one of them at a time."""
    found = {}
    for memory in ("1e7", "1e10"):
        run = subprocess.run([sys.executable, "-c", PEAK, memory], capture_output=True, text=True,
                             check=True)  # fmt: skip
        found[memory] = [float(part) for part in run.stdout.split()]
    (little, kept, norm), (much, all_kept, same_norm) = found["1e7"], found["1e10"]
    assert much > 100_000
    assert little < much / 4
    assert kept < all_kept
    assert norm == pytest.approx(same_norm, rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), lambda f, y: torch.cosh(f).mean()],
                         ids=["cross-entropy", "own"])  # fmt: skip
def test_compiled_products(operator, loss):
    case = problem("relu_mlp")
    for layer in (1, 3):
        case.model[layer] = nn.Tanh()
    parameters = list(case.model.parameters())
    expected = operator(case.model, case.data, loss).dense()
    data = [(case.x[:7], case.y[:7]), (case.x[7:], case.y[7:])]
    H = operator(case.model, data, loss, reduction="mean", compile=True)
    v = numbers(H.shape[0], 2)
    assert_same(H @ v, expected @ v)
    assert_same(H @ v[:, 0], expected @ v[:, 0])
    block = H.restrict("2")
    rows = slice(24, 24 + block.shape[0])
    assert_same(block @ v[rows], expected[rows, rows] @ v[rows])
    if operator is hs.hessian:
        plain = dense_hessian(lambda: loss(case.model(case.x), case.y), parameters)
        assert_same(expected, plain)


def test_sizes_of_graphs_are_worked_out_once_for_each_batch(monkeypatch):
    """And not anew for every batch that a block goes through."""
    asked = []
    worked_out = Graphs._bytes
    monkeypatch.setattr(Graphs, "_bytes", lambda *a: asked.append(1) or worked_out(*a))
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    data = [(numbers(2, 2), numbers(2, 1)) for _ in range(60)]
    H = hs.hessian(model, data, closure, reduction="mean", closure=True)
    for _ in range(2):
        _ = H @ numbers(H.shape[0], 2)
    assert len(asked) <= 2 * len(data)


def test_graphs_within_less_memory_are_cut_into_more_chunks(monkeypatch):
    monkeypatch.setattr("hessence.models.batch_parts.LEAST_CHUNK_BYTES", 1.0)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.GELU(), torch.nn.Linear(50, 2))
    G = hs.ggn(model, (torch.randn(200, 20), torch.randn(200, 2)))
    v = torch.randn(G.shape[0])
    image, whole = G @ v, G._graphs.chunk_bytes
    lean = type(G)(G.problem, G._graphs.within(whole), G._chosen)
    torch.testing.assert_close(lean @ v, image)
    assert len(list(lean._graphs.chunks())) >= 4 > len(list(G._graphs.chunks()))
    assert lean._graphs.chunk_bytes <= whole / 4


def test_graphs_of_wide_chains_are_cut_for_the_cache(monkeypatch):
    """And products are the same as in one piece."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 3000), nn.Tanh(), nn.Linear(3000, 1)).double()
    data = numbers(100, 1), numbers(100, 1)
    H = hs.hessian(model, data)
    v = numbers(H.shape[0])
    monkeypatch.setattr("hessence.models._feed_forward.CACHED_BYTES", 2.0**28)
    whole = hs.hessian(model, data)
    assert_same(H @ v, whole @ v)
    assert len(list(H._graphs.chunks())) > 1 == len(list(whole._graphs.chunks()))
