"""Small language models for the checks: causal attention and two-layer blocks around residuals.

Gradients are written out, as backpropagation, so that steps into the complex plane give Hessians;
there are no normalisations. A sink is a bias on the scores of every sequence's first token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.trained_networks import TINY

Block = Literal["attention", "layers"]


def _sigmoid(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-values)))


def _softmax(values: NDArray[Any]) -> NDArray[Any]:
    weights = np.exp(values - values.real.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@cache
def _later(length: int) -> NDArray[np.bool_]:
    """Return which tokens each token must not attend to."""
    return np.triu(np.ones((length, length), dtype=bool), 1)


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(-1, values.shape[-1])


@dataclass(frozen=True)
class Transformer:
    """A model and its batch: embedding, positions, all blocks, and the read-out, as matrices."""

    weights: tuple[NDArray[Any], ...]
    blocks: tuple[Block, ...]
    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    sink: float = 0.0

    def _scores(self, queries: NDArray[Any], keys: NDArray[Any]) -> NDArray[Any]:
        scores = queries @ np.swapaxes(keys, 1, 2) / np.sqrt(queries.shape[-1])
        scores[:, :, 0] += self.sink
        # exp(−inf) of a complex number is no number; that of −10⁴ is zero.
        return np.where(_later(scores.shape[1]), -1e4, scores)

    def _forward(self) -> tuple[NDArray[Any], list[tuple[NDArray[Any], ...]]]:
        """Return what is read out, and what every block needs on the way back."""
        state = self.weights[0][self.tokens] + self.weights[1]
        kept: list[tuple[NDArray[Any], ...]] = []
        place = 2
        for block in self.blocks:
            if block == "attention":
                query, key, value, out = self.weights[place : place + 4]
                parts = state @ query, state @ key, state @ value
                attention = _softmax(self._scores(parts[0], parts[1]))
                kept.append((state, *parts, attention))
                state = state + attention @ parts[2] @ out
                place += 4
            else:
                before = state @ self.weights[place]
                gate = _sigmoid(before)
                kept.append((state, before, gate))
                state = state + (before * gate) @ self.weights[place + 1]
                place += 2
        return state, kept

    def logits(self) -> NDArray[Any]:
        """Return the outputs, (sequences · tokens, vocabulary)."""
        return np.asarray(_flat(self._forward()[0]) @ self.weights[-1])

    def loss(self) -> float:
        """Return the mean cross-entropy."""
        shares = _softmax(self.logits())
        picked = np.take_along_axis(shares, self.targets.reshape(-1, 1), axis=1)
        return float(-np.log(picked).mean())

    def attended(self) -> float:
        """Return the mean weight of the first token, for the tokens after it."""
        found = [kept[-1][:, 1:, 0] for kept in self._forward()[1] if len(kept) == 5]
        return float(np.mean(found))

    def gradients(self) -> list[NDArray[Any]]:
        """Return the gradient in every matrix."""
        state, kept = self._forward()
        errors = _softmax(_flat(state) @ self.weights[-1])
        errors[np.arange(len(errors)), self.targets.ravel()] -= 1
        errors = errors / len(errors)
        found = [_flat(state).T @ errors]
        back = (errors @ self.weights[-1].T).reshape(state.shape)
        place = len(self.weights) - 1
        for block, parts in zip(self.blocks[::-1], kept[::-1], strict=True):
            before = _flat(parts[0]).T
            if block == "attention":
                seen, queries, keys, values, attention = parts
                query, key, value, out = self.weights[place - 4 : place]
                mixed = attention @ values
                on_mixed = back @ out.T
                on_weights = on_mixed @ np.swapaxes(values, 1, 2)
                on_scores = attention * (
                    on_weights - np.sum(on_weights * attention, axis=2, keepdims=True)
                ) / np.sqrt(seen.shape[-1])  # fmt: skip
                on_values = np.swapaxes(attention, 1, 2) @ on_mixed
                on_queries, on_keys = on_scores @ keys, np.swapaxes(on_scores, 1, 2) @ queries
                found += [_flat(mixed).T @ _flat(back), before @ _flat(on_values),
                          before @ _flat(on_keys), before @ _flat(on_queries)]  # fmt: skip
                back = back + on_queries @ query.T + on_keys @ key.T + on_values @ value.T
                place -= 4
            else:
                _, hidden, gate = parts
                first, second = self.weights[place - 2 : place]
                inward = gate * (1 + hidden * (1 - gate)) * (back @ second.T)
                found += [_flat(hidden * gate).T @ _flat(back), before @ _flat(inward)]
                back = back + inward @ first.T
                place -= 2
        chosen = np.eye(len(self.weights[0]))[self.tokens.ravel()]
        return [chosen.T @ _flat(back), back.sum(axis=0), *found[::-1]]

    def descend(self, rate: float, steps: int) -> Transformer:
        """Return the model after full-batch descent."""
        now = self
        for _ in range(steps):
            pairs = zip(now.weights, now.gradients(), strict=True)
            now = replace(now, weights=tuple(w - rate * g for w, g in pairs))
        return now

    def _moved(self) -> Iterator[Transformer]:
        """Give the model with every single parameter a step off the real line."""
        for place, weight in enumerate(self.weights):
            for entry in np.ndindex(*weight.shape):
                moved = weight.astype(np.complex128)
                moved[entry] += 1j * TINY
                yield replace(
                    self, weights=(*self.weights[:place], moved, *self.weights[place + 1 :])
                )

    def sharpness(self) -> float:
        """Return λ_max of the Hessian."""
        columns = [
            np.concatenate([g.imag.ravel() for g in other.gradients()]) / TINY
            for other in self._moved()
        ]
        hessian = np.array(columns)
        return float(np.linalg.eigvalsh((hessian + hessian.T) / 2)[-1])

    def gauss_newton(self) -> float:
        """Return λ_max of the Hessian's Gauss–Newton part."""
        jacobian: Array = np.array([other.logits().imag / TINY for other in self._moved()])
        shares = _softmax(self.logits())
        mean = np.sum(jacobian * shares, axis=2, keepdims=True)
        root = ((jacobian - mean) * np.sqrt(shares)).reshape(len(jacobian), -1)
        return float(np.linalg.norm(root, 2) ** 2 / len(shares))


def draw(seed: int, blocks: tuple[Block, ...]) -> Transformer:
    """Draw a model with tokens of three dimensions, and sequences of a Markov chain to learn."""
    rng = np.random.default_rng((170, seed))
    vocabulary, size, hidden, length = 5, 3, 6, 5
    chain = rng.dirichlet(np.full(vocabulary, 0.3), size=vocabulary)
    text = np.zeros((16, length + 1), dtype=np.int64)
    text[:, 0] = rng.integers(vocabulary, size=16)
    for t in range(length):
        text[:, t + 1] = [rng.choice(vocabulary, p=chain[token]) for token in text[:, t]]
    shapes = [(vocabulary, size), (length, size)]
    for block in blocks:
        shapes += [(size, size)] * 4 if block == "attention" else [(size, hidden), (hidden, size)]
    shapes.append((size, vocabulary))
    weights = tuple(rng.normal(size=shape) / np.sqrt(size) for shape in shapes)
    return Transformer(weights, blocks, text[:, :-1], text[:, 1:])
