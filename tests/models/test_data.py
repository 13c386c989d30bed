"""Data as users give them: in any batches and any order, the answer is that of all data at once."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

import hessence as hs
from tests.models.conftest import SAMPLES
from tests.models.market import Pair, numbers
from tests.models.oracle import assert_same, dense_hessian


class Table(Dataset):
    """A map of samples, with NumPy's numbers for targets as many have."""

    def __init__(self, x, y):
        self.x, self.y = x, y.numpy()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Numbered(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return zip(self.x.split(5), self.y.split(5), strict=True)


FORMS = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "list of batches": lambda x, y: [(x[:30], y[:30]), (x[30:], y[30:])],
    "tuples in a list": lambda x, y: [[x[:3], y[:3]], [x[3:], y[3:]]],
    "empty batch in between": lambda x, y: [(x[:9], y[:9]), (x[:0], y[:0]), (x[9:], y[9:])],
    "TensorDataset": TensorDataset,
    "map": Table,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=8),
    "ragged loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=30),
    "single samples": lambda x, y: DataLoader(TensorDataset(x, y)),
    "shuffling loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True),
    "loader with a generator": lambda x, y: DataLoader(
        TensorDataset(x, y), batch_size=5, shuffle=True, generator=torch.Generator()
    ),
    "loader with a sampler": lambda x, y: DataLoader(
        TensorDataset(x, y), batch_size=5,
        sampler=RandomSampler(range(SAMPLES), generator=torch.Generator()),
    ),
    "loader of a map": lambda x, y: DataLoader(Table(x, y), batch_size=7, shuffle=True),
    "iterable data set": lambda x, y: DataLoader(Numbered(x, y), batch_size=None),
}  # fmt: skip


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_the_same_data(case, form, memory):
    model, x, y, loss, H, G = case
    data = FORMS[form](x, y)
    before = torch.get_rng_state()
    found = hs.hessian(model, data, loss, memory=memory)
    assert_same(found.dense(), H)
    assert_same(found.dense(), H)
    assert_same(hs.ggn(model, data, loss, memory=memory).dense(), G)
    assert found.loss() == pytest.approx(loss(model(x), y).item(), rel=1e-13)
    assert found.check().passed
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaders_own_generator_is_left_alone(case):
    model, x, y, loss, _, _ = case
    generator = torch.Generator().manual_seed(7)
    sampler = RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(8))
    data = DataLoader(TensorDataset(x, y), batch_size=5, sampler=sampler, generator=generator)
    before = generator.get_state(), sampler.generator.get_state()
    H = hs.hessian(model, data, loss, memory=0)
    H @ torch.ones(H.shape[0], dtype=torch.float64)
    H.check()
    assert torch.equal(generator.get_state(), before[0])
    assert torch.equal(sampler.generator.get_state(), before[1])


@pytest.mark.parametrize("memory", [None, 0])
def test_the_same_twice_bit_by_bit(case, memory):
    """However the user's own random numbers go on in between."""
    model, x, y, loss, _, _ = case
    data = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)
    v = numbers(31)
    H = hs.hessian(model, data, loss, memory=memory)
    first = H @ v
    torch.rand(3)
    assert torch.equal(H @ v, first)


def test_workers(case):
    model, x, y, loss, H, _ = case
    data = DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True, num_workers=1)
    assert_same(hs.hessian(model, data, loss).dense(), H)


def test_workers_that_the_user_is_in_the_middle_of(case):
    model, x, y, loss, expected, _ = case
    loader = DataLoader(
        TensorDataset(x, y), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True
    )
    seen = 0
    for batch in loader:
        if seen == 1:
            assert_same(hs.hessian(model, loader, loss).dense(), expected)
        seen += len(batch[0])
    assert seen == len(x)


def test_shuffling_loaders_that_drop_samples(case):
    """Every pass has the same samples, whether one of them is kept or not."""
    model, x, y, loss, _, _ = case
    data = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True, drop_last=True)
    H = hs.hessian(model, data, loss)
    first = H.dense()
    torch.rand(3)
    assert torch.equal(H.dense(), first)
    read = hs.hessian(model, data, loss, memory=0)
    again = read.dense()
    torch.rand(3)
    assert torch.equal(read.dense(), again)


class Jittered(Dataset):
    """Changes its samples at random."""

    def __init__(self, x, y, draw):
        self.x, self.y, self.draw = x, y, draw

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.draw(), self.y[index]


def test_samples_that_change_at_random(case):
    """One pass must be kept, or they must be drawn in workers, which a loader seeds."""
    model, x, y, loss, _, _ = case
    loader = DataLoader(Jittered(x, y, lambda: torch.rand(())), batch_size=5, num_workers=1)
    H = hs.hessian(model, loader, loss, memory=0)
    first = H @ torch.ones(H.shape[0], dtype=torch.float64)
    torch.rand(3)
    assert torch.equal(H @ torch.ones(H.shape[0], dtype=torch.float64), first)
    for draw in (lambda: torch.rand(()), random.random, np.random.default_rng(0).normal):
        other = DataLoader(Jittered(x, y, draw), batch_size=5)
        kept = hs.hessian(model, other, loss)
        assert torch.equal(kept.dense(), kept.dense())
        with pytest.raises(ValueError, match="data has other batches on another pass"):
            hs.hessian(model, other, loss, memory=0).dense()


class Late:
    """Has another last batch, or one more or less, from the second pass on."""

    def __init__(self, x, y, change):
        self.batches, self.passes = list(zip(x.split(8), y.split(8), strict=True)), 0
        self.change = change

    def __iter__(self):
        self.passes += 1
        return iter(self.change(self.batches) if self.passes > 2 else self.batches)


@pytest.mark.parametrize("change", [
    lambda batches: [*batches[:-1], (batches[-1][0].flip(0), batches[-1][1])],
    lambda batches: batches[:-1], lambda batches: [*batches, batches[0]],
    lambda batches: batches[::-1],
], ids=["other rows", "one less", "one more", "another order"])  # fmt: skip
def test_a_pass_that_differs_anywhere_is_refused(case, change):
    model, x, y, loss, expected, _ = case

    def closure(model, batch):
        return loss(model(batch[0]), batch[1]), (batch[1] != -100).sum()

    H = hs.hessian(model, Late(x, y, lambda b: b), closure, closure=True, memory=0)
    assert_same(H.dense(), expected)
    H = hs.hessian(model, Late(x, y, change), closure, closure=True, memory=0)
    with pytest.raises(ValueError, match="data has other batches on another pass"):
        _ = [H.dense() for _ in range(4)]


class Once(IterableDataset):
    """Can be iterated over a single time, behind a loader that hides it."""

    def __init__(self, x, y):
        self.samples = iter(zip(x, y, strict=True))

    def __iter__(self):
        return self.samples


def test_all_of_what_can_be_read_once_is_read(case):
    model, x, y, loss, expected, _ = case
    loader = DataLoader(Once(x, y), batch_size=5)
    assert_same(hs.hessian(model, loader, loss).dense(), expected)


class Odd(list):
    """A pair that is not made like other lists."""

    def __init__(self, x, y):
        super().__init__([x, y])


def test_batches_that_are_lists_of_another_kind(case):
    model, x, y, loss, expected, _ = case
    assert_same(hs.hessian(model, [Odd(x, y)], loss).dense(), expected)


class Sparse:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        for start in range(0, len(self.x), 8):
            yield self.x[start : start + 8].to_sparse(), self.y[start : start + 8]


def test_sparse_inputs(case):
    model, x, y, loss, expected, _ = case
    for memory in (None, 0):
        assert_same(hs.hessian(model, Sparse(x, y), loss, memory=memory).dense(), expected)
    for data in ((x.to_sparse(), y), [(x.to_sparse(), y)]):
        assert_same(hs.hessian(model, data, loss).dense(), expected)


class Fading:
    """Has nothing but NaN in its first batch, from the second pass on."""

    def __init__(self, x, y):
        self.x, self.y, self.passes = x, y, 0

    def __iter__(self):
        self.passes += 1
        lost = self.passes > 1
        yield (torch.full_like(self.x[:9], torch.nan) if lost else self.x[:9]), self.y[:9]
        yield self.x[9:], self.y[9:]


def test_numbers_that_are_lost_are_noticed(case):
    model, x, y, loss, _, _ = case
    with pytest.raises(ValueError, match="other batches on another pass"):
        hs.hessian(model, Fading(x, y), loss, memory=0).dense()


def test_a_loader_that_runs_dry_is_noticed(case):
    model, x, y, loss, H, _ = case
    kept = hs.hessian(model, DataLoader(Once(x, y), batch_size=5), loss)
    assert_same(kept.dense(), H)
    with pytest.raises(ValueError, match=r"data has other batches on another pass.*raise memory="):
        hs.hessian(model, DataLoader(Once(x, y), batch_size=5), loss, memory=0).dense()


def test_several_inputs_in_batches():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, loss = Pair().double(), nn.MSELoss()
        left, right, y = numbers(9, 2), numbers(9, 4), numbers(9, 2)
    expected = dense_hessian(lambda: loss(model(left, right), y), model.parameters())
    for parts in ((slice(7), slice(7, None)), (slice(1), slice(1, None))):
        several = [((left[i], right[i]), y[i]) for i in parts]
        named = [({"left": left[i], "right": right[i]}, y[i]) for i in parts]
        for data in (several, named):
            assert_same(hs.hessian(model, data, loss).dense(), expected)


def arrays(x, y):
    return x.numpy(), y.numpy()


def generator(x, y):
    yield x, y


REFUSED = {
    "generator": (lambda x, y: generator(x, y), TypeError, "data can be iterated over only once"),
    "zip": (lambda x, y: zip([x], [y], strict=True), TypeError, "data can be iterated over only"),
    "iterator": (lambda x, y: iter([(x, y)]), TypeError, "data can be iterated over only once"),
    "no batches": (lambda x, y: [], ValueError, "data is empty"),
    "no samples": (lambda x, y: (x[:0], y[:0]), ValueError, "data is empty"),
    "empty data set": (lambda x, y: TensorDataset(x[:0], y[:0]), ValueError, "data is empty"),
    "empty map": (lambda x, y: Table(x[:0], y[:0]), ValueError, "data is empty"),
    "tensor": (lambda x, y: x, TypeError, r"data must be a pair \(x, y\)"),
    "arrays": (arrays, TypeError, "data must hold torch tensors, got ndarray"),
    "list of arrays": (lambda x, y: list(arrays(x, y)), TypeError, "data must hold torch tensors"),
    "batches of arrays": (lambda x, y: [arrays(x, y)], TypeError, "data must hold torch tensors"),
    "array": (lambda x, y: x.numpy(), TypeError, "data must hold torch tensors, got ndarray"),
    "array target": (lambda x, y: (x, y.numpy()), TypeError, "data must hold torch tensors"),
    "lists": (lambda x, y: (x.tolist(), y), TypeError, "data must hold torch tensors .* got list"),
    "list target": (lambda x, y: (x, y.tolist()), TypeError, "data must hold .* Tensor and list: "),
    "no target": (lambda x, y: (x, None), TypeError, "data must hold .* got Tensor and NoneType"),
    "number": (lambda x, y: 3.0, TypeError, "data must be a pair .*, got float"),
    "none": (lambda x, y: None, TypeError, "data must be a pair .*, got NoneType"),
    "inputs alone": (lambda x, y: [x], ValueError, "data must have batches that are pairs"),
    "three": (lambda x, y: (x, x, y), ValueError, "data must have batches that are pairs"),
}


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("form", REFUSED)
def test_what_is_refused(case, form, operator):
    model, x, y, loss, _, _ = case
    make, error, message = REFUSED[form]
    with pytest.raises(error, match=message) as caught:
        operator(model, make(x, y), loss)
    assert str(caught.value).count("\n") == 0


def test_arrays_beside_tensors_in_a_dictionary():
    """A closure may have a use for them."""
    model = nn.Linear(2, 1)
    batch = {"x": torch.randn(3, 2), "names": np.arange(3)}
    H = hs.hessian(model, batch, lambda model, batch: model(batch["x"]).pow(2).mean())
    assert (H @ torch.ones(3)).shape == (3,)


def test_a_data_set_that_may_have_samples_or_batches(case):
    model, x, y, loss, *_ = case
    with pytest.raises(TypeError, match=r"data: an IterableDataset may .*batch_size=None"):
        hs.hessian(model, Numbered(x, y), loss)


def test_a_generator_inside_of_a_batch_sampler(case):
    model, x, y, loss, expected, _ = case
    generator = torch.Generator().manual_seed(0)
    table = TensorDataset(x, y)
    sampler = BatchSampler(RandomSampler(table, generator=generator), 5, drop_last=False)
    before = generator.get_state()
    for memory in (None, 0):
        H = hs.hessian(model, DataLoader(table, batch_sampler=sampler), loss, memory=memory)
        assert_same(H.dense(), expected)
        assert torch.equal(generator.get_state(), before)


def test_several_batches_in_a_tuple_are_told_of(case):
    model, x, y, loss, *_ = case
    with pytest.raises(ValueError, match="several batches go into a list"):
        hs.hessian(model, ((x[:9], x[:9]), (y[:9], y[:9])), lambda f, t: loss(f, t[0])).dense()
