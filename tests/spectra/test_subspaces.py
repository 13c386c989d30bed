"""Families of invariant subspaces: what they do not supply comes from the operator."""

import numpy as np
import pytest
import torch

import hessence as hs
from hessence.spectra.subspaces import Columns, Subspaces


class Matrix:
    """A symmetric matrix that counts the columns it multiplies."""

    def __init__(self, entries):
        self.reference, self.columns = entries, 0
        self.shape = entries.shape

    def __matmul__(self, columns):
        self.columns += columns.shape[-1]
        return self.reference @ columns


@pytest.fixture
def direct_sum():
    """B ⊗ I₃ ⊕ C in a random orthonormal basis, with the isometries of both parts."""
    rng = np.random.default_rng(0)
    B, C = (a + a.T for a in (rng.normal(size=(2, 2)), rng.normal(size=(5, 5))))
    q, _ = np.linalg.qr(rng.normal(size=(11, 11)))
    entries = q[:, :6] @ np.kron(B, np.eye(3)) @ q[:, :6].T + q[:, 6:] @ C @ q[:, 6:].T

    def embed(coordinates, copies):
        return q[:, :6] @ (coordinates[:, None, None] * copies).reshape(6, -1)

    copied = Subspaces(("outlier", "bulk"), lambda _: embed, 3)
    single = Subspaces(("twin",) * 5, lambda _: Columns(lambda c: q[:, 6:] @ c))
    return entries, B, C, copied, single, q


def test_blocks_that_are_not_supplied_come_from_products(direct_sum):
    entries, _, _, copied, single, _ = direct_sum
    H = Matrix(entries)
    s = hs.Spectrum([copied, single], "by hand", operator=H)
    np.testing.assert_allclose(s.eigenvalues, np.linalg.eigvalsh(entries)[::-1], atol=1e-13)
    assert H.columns == 2 + 5
    z = s.eigenvectors
    np.testing.assert_allclose(z.T @ z, np.eye(11), atol=1e-13)
    np.testing.assert_allclose(entries @ z, z * s.eigenvalues, atol=1e-12)
    assert sorted({space.multiplicity for space in s.spaces}) == [1, 3]


def test_a_transpose_and_products_of_its_own_are_used(direct_sum, monkeypatch):
    entries, _, C, copied, _, q = direct_sum
    monkeypatch.setattr("hessence.spectra.subspaces.CHUNK", 22)
    with_transpose = Columns(lambda c: q[:, 6:] @ c, lambda v: q[:, 6:].T @ v)
    for products in (None, lambda c: C @ c):
        H = Matrix(entries)
        family = Subspaces(("twin",) * 5, lambda _: with_transpose, products=products)
        s = hs.Spectrum([copied, family], "by hand", operator=H)
        np.testing.assert_allclose(s.eigenvalues, np.linalg.eigvalsh(entries)[::-1], atol=1e-13)
        assert H.columns == (7 if products is None else 2)


def test_values_in_closed_form_need_no_matrix_until_a_vector_is_asked_for(direct_sum):
    entries, B, _, copied, _, _ = direct_sum
    H, asked = Matrix(entries), []

    def matrix(member):
        asked.append(member)
        return B

    values = np.linalg.eigvalsh(B)[::-1]
    lazy = Subspaces(copied.labels, copied.isometry, 3, values=values, matrix=matrix)
    plain = Subspaces(copied.labels, copied.isometry, 3, values=values)
    for family in (lazy, plain):
        asked.clear()
        s = hs.Spectrum([family], "by hand", operator=H)
        assert not asked
        assert not H.columns
        for space in s.spaces:
            z = space.vectors()
            np.testing.assert_allclose(entries @ z, space.value * z, atol=1e-13)
        assert asked == ([0] if family is lazy else [])
    assert H.columns == 2


def test_without_an_operator_a_block_must_be_given(direct_sum):
    with pytest.raises(ValueError, match="need the operator"):
        hs.Spectrum([direct_sum[4]], "by hand")


def test_members_of_a_family_have_their_own_labels_and_blocks():
    matrix = np.stack([np.diag([1.0, 2.0]), np.diag([5.0, 4.0])])
    labels = ("large", "small")
    for members in (("/a", "/b"), lambda member: "/" + "ab"[member]):
        family = Subspaces(labels, lambda _: None, 3, members, matrix=matrix)
        np.testing.assert_array_equal(family.eigenvalues, [2, 1, 5, 4])
        assert [family.label(s, i) for s in range(2) for i in range(2)] == [
            "large/a",
            "small/a",
            "large/b",
            "small/b",
        ]
        np.testing.assert_allclose(np.abs(family.eigenvectors(1)[:, 0]), [1, 0], atol=1e-16)


def test_mapped_families_scale_and_rearrange(direct_sum):
    entries, _, _, copied, single, _ = direct_sum
    order = np.random.default_rng(1).permutation(11)
    H = Matrix(entries)
    families = [f.of(H).mapped(lambda v: v[order], 2.5, 1.0) for f in (copied, single)]
    s = hs.Spectrum(families, "by hand")
    turned = 2.5 * entries[np.ix_(order, order)]
    np.testing.assert_allclose(turned @ s.eigenvectors, s.eigenvectors * s.eigenvalues, atol=1e-12)


def test_gradients_flow_through_products(direct_sum):
    entries, _, _, _, single, q = direct_sum
    tensor = torch.as_tensor(entries).requires_grad_()
    basis = torch.as_tensor(q[:, 6:])
    family = Subspaces(single.labels, lambda _: Columns(lambda c: basis @ c))
    top = hs.Spectrum([family], "by hand", operator=Matrix(tensor)).sharpness
    (gradient,) = torch.autograd.grad(top, tensor)
    vector = hs.Spectrum([single], "by hand", operator=Matrix(entries)).spaces[0].vectors()
    np.testing.assert_allclose(gradient, vector @ vector.T, atol=1e-12)


def test_samples_have_the_image_under_the_operator(direct_sum):
    entries, B, _, copied, single, _ = direct_sum
    values = np.linalg.eigvalsh(B)[::-1]
    known = Subspaces(copied.labels, copied.isometry, 3, values=values, matrix=B)
    tripled = known.mapped(lambda columns: columns[::-1], 3.0, 1.0)
    rng = np.random.default_rng(0)
    for family in hs.Spectrum([known, single], "by hand", operator=Matrix(entries)).families:
        vector, image = family.sample(rng)
        assert np.linalg.norm(vector) > 0.1
        np.testing.assert_allclose(entries @ vector, image, atol=1e-12)
    vector, image = tripled.sample(rng)
    np.testing.assert_allclose(3 * entries @ vector[::-1], image[::-1], atol=1e-12)
