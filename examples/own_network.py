"""A network of one's own in one file: f(x) = ‖W x‖², with all eigenvalues of its Hessian.

The network supplies its prediction, gradient and Hessian product, and the subspaces that the
Hessian leaves invariant. Spectra, eigenvectors, certificates, training, pictures and files follow.

The loss ½ E[(‖W x‖² − y)²] depends on W (m × D) through WᵀW alone. With δ = ‖W x‖² − y and
G = E[δ x xᵀ], its second variation along dW is E[(2 ⟨W x, dW x⟩)²] + 2 tr(dW G dWᵀ). A change
dW = z uᵀ with z orthogonal to the columns of W leaves the first term alone. So, for an orthonormal
basis Q of these r columns and the eigenpairs (g_i, u_i) of G:

- the changes Q C make one invariant subspace of dimension r D, the *twin*;
- the changes z u_iᵀ have the eigenvalue 2 g_i, the *bulk*, with m − r copies for each i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

import hessence as hs
from hessence.networks.network import Network
from hessence.spectra.frames import Complement, span
from hessence.spectra.hessian import Hessian
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Columns, Subspaces


@dataclass(frozen=True, eq=False)
class QuadraticNetwork(Network):
    """f(x) = ‖W x‖² for W (m, D), x (n, D) and y (n,); the loss is ½ E[(f − y)²]."""

    W: Any
    rank: ClassVar[int] = 2

    @property
    def _weights(self):
        return {"W": self.W}

    def _rebuild(self, weights):
        return QuadraticNetwork(**weights)

    def __call__(self, x):
        return np.sum((x @ self.W.T) ** 2, axis=-1)

    def loss(self, x, y=None, loss="mse"):
        return np.mean((self(x) - y) ** 2) / 2

    def gradient(self, x, y=None, loss="mse"):
        return np.ravel(2 * self.W @ _residual_covariance(self(x) - y, x))

    def hessian(self, x, y=None, loss="mse"):
        return QuadraticHessian(self.W, x, _residual_covariance(self(x) - y, x))


def _residual_covariance(residual, x):
    return x.T @ (residual[:, None] * x) / len(x)


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticHessian(Hessian):
    """Products with the Hessian or one of its two parts, and their invariant subspaces."""

    W: Any
    x: Any
    G: Any
    part: str = "hessian"

    @property
    def shape(self):
        return (self.W.size, self.W.size)

    @property
    def reference(self):
        return self.W

    def times(self, columns):
        changes = columns.T.reshape(-1, *self.W.shape)
        images = np.zeros_like(changes)
        if self.part != "functional":
            moved = 2 * np.sum((self.x @ self.W.T) * (self.x @ changes.mT), axis=-1)
            images += 2 * self.W @ (self.x.T @ (moved[..., None] * self.x)) / len(self.x)
        if self.part != "ggn":
            images += 2 * changes @ self.G
        return images.reshape(len(changes), -1).T

    def exact_spectrum(self):
        width, inputs = self.W.shape
        basis, rank = span(self.W)
        basis, complement = basis[:, :rank], Complement(basis[:, :rank])
        values, vectors = np.linalg.eigh(self.G)

        def twin(coordinates):
            changes = basis @ coordinates.T.reshape(-1, rank, inputs)
            return changes.reshape(len(changes), -1).T

        def bulk(member):
            def embed(coordinates, copies):
                hidden = complement(coordinates[..., None] * copies)
                changes = hidden.T[:, :, None] * vectors[:, member]
                return changes.reshape(len(changes), -1).T

            return embed

        if self.part == "ggn":
            values = 0 * values
        return Spectrum(
            [
                # No matrix is given: it is basisᵀ (H basis), from the products above.
                Subspaces(("twin",) * (rank * inputs), lambda _: Columns(twin)),
                Subspaces(
                    ("bulk",),
                    bulk,
                    width - rank,
                    [f"/{i}" for i in range(inputs)],
                    values=2 * values[:, None],
                ),
            ],
            "twin and bulk",
            operator=self,
        )

    # Trace and norm come from the entries, so that certificates check the eigenvalues with them.

    def trace(self):
        squares = np.sum(self.x**2, axis=-1) * np.sum((self.x @ self.W.T) ** 2, axis=-1)
        parts = {"ggn": 4 * np.mean(squares), "functional": 2 * len(self.W) * np.trace(self.G)}
        return parts.get(self.part, sum(parts.values()))

    def squared_norm(self):
        return np.sum(self.dense() ** 2)

    @property
    def ggn(self):
        return replace(self, part="ggn")

    @property
    def functional(self):
        return replace(self, part="functional")


def main() -> None:
    """Compare with automatic differentiation, which knows nothing of the theorem."""
    rng = np.random.default_rng(0)
    net = QuadraticNetwork(rng.normal(size=(40, 3)))
    x, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    H = net.hessian(x, y)
    s = H.spectrum()
    print(s)

    def loss(theta):
        f = ((torch.tensor(x) @ theta.reshape(40, 3).T) ** 2).sum(-1)
        return ((f - torch.tensor(y)) ** 2).mean() / 2

    dense = torch.autograd.functional.hessian(loss, torch.tensor(net.parameters())).numpy()
    scale = np.linalg.norm(dense)
    assert np.abs(H.dense() - dense).max() < 1e-13 * scale
    assert np.abs(s.eigenvalues - np.linalg.eigvalsh(dense)[::-1]).max() < 1e-13 * scale
    for part in (H, H.ggn, H.functional):
        assert part.spectrum().verify(part).worst < 1e-13
    descent = hs.gradient_descent(net, x, net(x) + 1, lr=1e-4, steps=5)
    assert descent.loss[-1] < descent.loss[0]


if __name__ == "__main__":
    main()
