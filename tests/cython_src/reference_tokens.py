"""A training step of a network of tokens in plain NumPy and float64, beside `reference` for networks of images.

Nothing here knows of plans, blocks or layouts. Tensors are (N, T, C): samples, tokens, features.

    Embedding   Y[n, t] = W[token[n, t]] + P[t]
    Positions   Y[n, t] = X[n, t] + P[t] + S[0]
    Trigram     Y[n, t] = X[n, t + 1], X[n, t], X[n, t - 1] side by side, zeros outside of the sample
    FirstToken  Y[n] = X[n, 0]
    NoNorm      Y = w X + b
    LayerNorm   Y = w (X - mean) / sqrt(var + eps) + b, mean and variance of each token's features
    Linear      Y = X @ W.T + b
    Attention   Y = softmax(Q K^T / sqrt(d)) V for each sample and head, with the later keys left out if it is causal
    GELU        Y = 0.5 X (1 + tanh(sqrt(2 / pi) (X + 0.044715 X^3)))
    Add         Y = X1 + X2
    ReLU        Y = max(X, 0)
    Sigmoid     Y = 1 / (1 + exp(-X))
    TiedHead    Y = X @ W.T + b with the embedding's W, to which rows of the head's own may be joined
    SoftmaxCrossEntropy
                the loss is the mean of -log of the target's probability over all targets that are not IGNORED

The gradient of a layer's output is the sum of what all layers that take it send back; that of the tied weights is the
sum of the head's and the embedding's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from cython_src.reference import Step

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks.layers import (
    GELU,
    Add,
    Attention,
    Embedding,
    FirstToken,
    Layer,
    LayerNorm,
    Linear,
    Network,
    NoNorm,
    Positions,
    ReLU,
    Sigmoid,
    TiedHead,
    Trigram,
)

SCALE, CUBE = math.sqrt(2 / math.pi), 0.044715
IGNORED = -100


def forward(network: Network, parameters: Mapping[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray) -> Step:
    """Loss, number of right answers and all activations.

    Parameters
    ----------
    network : Network
        Its last layer is SoftmaxCrossEntropy.
    parameters : mapping of str to ndarray
    tokens : integers, shape (N, T)
    targets : integers, shape (N, T), or (N, 1) of classes
    """
    weights = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    activations: dict[str, np.ndarray] = {"input": np.asarray(tokens)}
    inputs = network.inputs()
    for layer in network.layers[:-1]:
        activations[layer.name] = _layer_forward(layer, weights, [activations[name] for name in inputs[layer.name]])
    logits = activations[inputs[network.layers[-1].name][0]]
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    activations["softmax"] = np.exp(logs)
    counted, indices = targets != IGNORED, np.maximum(targets, 0)
    losses = -np.take_along_axis(logs, indices[..., None], axis=-1)[..., 0] * counted
    loss = float(losses.sum()) / max(counted.sum(), 1)
    return Step(loss, int((logits.argmax(axis=-1) == targets).sum()), activations)


def forward_backward(
    network: Network, parameters: Mapping[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray
) -> Step:
    """`forward`, and the gradients of the mean loss for every parameter and activation."""
    step = forward(network, parameters, tokens, targets)
    weights = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    inputs = network.inputs()
    # d loss / d logits = (softmax - target) / number of targets
    hits, counted = np.zeros_like(step.activations["softmax"]), targets != IGNORED
    np.put_along_axis(hits, np.maximum(targets, 0)[..., None], 1.0, axis=-1)
    difference = (step.activations["softmax"] - hits) * counted[..., None]
    step.gradients[inputs[network.layers[-1].name][0]] = difference / max(counted.sum(), 1)
    for layer in reversed(network.layers[:-1]):
        x = [step.activations[name] for name in inputs[layer.name]]
        parts, own = _layer_backward(layer, weights, x, step.gradients[layer.name])
        for name, dx in (*zip(inputs[layer.name], parts, strict=False), *own.items()):
            step.gradients[name] = step.gradients[name] + dx if name in step.gradients else dx
    return step


class AdamW:
    """AdamW as torch.optim.AdamW writes it, over the steps of one training run.

    p = p (1 - rate decay);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
    p = p - rate m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    Parameters
    ----------
    parameters : mapping of str to ndarray
        Copied, in float64.
    learning_rate, betas, eps, weight_decay : float
    """

    def __init__(
        self,
        parameters: Mapping[str, np.ndarray],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-4,
    ):
        self.parameters = {name: np.array(value, np.float64) for name, value in parameters.items()}
        self.first = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self.second = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self.learning_rate, self.betas, self.eps, self.weight_decay = learning_rate, betas, eps, weight_decay
        self.steps = 0

    def step(self, network: Network, tokens: np.ndarray, targets: np.ndarray) -> Step:
        """One training step: gradients at the current parameters, then the update."""
        step = forward_backward(network, self.parameters, tokens, targets)
        self.steps += 1
        corrections = [1 - beta**self.steps for beta in self.betas]
        for name, p in self.parameters.items():
            g, m, v = step.gradients[name], self.first[name], self.second[name]
            p *= 1 - self.learning_rate * self.weight_decay
            m += (1 - self.betas[0]) * (g - m)
            v += (1 - self.betas[1]) * (g * g - v)
            p -= self.learning_rate * (m / corrections[0]) / (np.sqrt(v / corrections[1]) + self.eps)
        return step


def _layer_forward(layer: Layer, weights: Mapping[str, np.ndarray], inputs: list[np.ndarray]) -> np.ndarray:
    x = inputs[0]
    match layer:
        case Embedding():
            y = weights[f"{layer.name}.weight"][x]
            return y + weights[f"{layer.positions}.weight"][: x.shape[1]] if layer.positions else y
        case Positions():
            y = x + weights[f"{layer.name}.weight"][: x.shape[1]]
            return y + weights[f"{layer.types}.weight"][0] if layer.types else y
        case Trigram():
            return np.concatenate([_shifted(x, 1), x, _shifted(x, -1)], axis=-1)
        case FirstToken():
            return x[:, :1]
        case NoNorm():
            return x * weights[f"{layer.name}.weight"] + weights[f"{layer.name}.bias"]
        case LayerNorm():
            return _normalised(layer, x)[0] * weights[f"{layer.name}.weight"] + weights[f"{layer.name}.bias"]
        case Linear():
            y = x @ weights[f"{layer.name}.weight"].T
            return y + weights[f"{layer.name}.bias"] if layer.bias else y
        case Attention():
            _, _, v, p = _attention(layer, np.concatenate(inputs, axis=-1))
            return _joined(p @ v)
        case ReLU():
            return np.maximum(x, 0)
        case GELU():
            return 0.5 * x * (1 + np.tanh(SCALE * (x + CUBE * x**3)))
        case Sigmoid():
            return 1 / (1 + np.exp(-x))
        case Add():
            return x + inputs[1]
        case TiedHead():
            y = x @ _head_weights(layer, weights).T
            return y + weights[f"{layer.name}.bias"] if layer.bias else y
    raise UsageError(f"the reference has no formula for {layer!r}; add one")


def _layer_backward(
    layer: Layer, weights: Mapping[str, np.ndarray], inputs: list[np.ndarray], dy: np.ndarray
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the gradients of the inputs, and of the parameters by name."""
    x = inputs[0]
    weight, bias = f"{layer.name}.weight", f"{layer.name}.bias"
    match layer:
        case Embedding():
            own = {weight: np.zeros_like(weights[weight])}
            np.add.at(own[weight], x, dy)
            if layer.positions:
                place = own[f"{layer.positions}.weight"] = np.zeros_like(weights[f"{layer.positions}.weight"])
                place[: x.shape[1]] = dy.sum(axis=0)
            return [], own
        case Positions():
            own = {weight: np.zeros_like(weights[weight])}
            own[weight][: x.shape[1]] = dy.sum(axis=0)
            if layer.types:
                kind = own[f"{layer.types}.weight"] = np.zeros_like(weights[f"{layer.types}.weight"])
                kind[0] = dy.sum(axis=(0, 1))
            return [dy], own
        case Trigram():
            after, at, before = np.split(dy, 3, axis=-1)
            return [_shifted(after, -1) + at + _shifted(before, 1)], {}
        case FirstToken():
            dx = np.zeros_like(x)
            dx[:, :1] = dy
            return [dx], {}
        case NoNorm():
            return [dy * weights[weight]], {weight: (dy * x).sum(axis=(0, 1)), bias: dy.sum(axis=(0, 1))}
        case LayerNorm():
            normal, inverse = _normalised(layer, x)
            own = {weight: (dy * normal).sum(axis=(0, 1)), bias: dy.sum(axis=(0, 1))}
            d = dy * weights[weight]
            means = [part.mean(axis=-1, keepdims=True) for part in (d, d * normal)]
            return [inverse * (d - means[0] - normal * means[1])], own
        case Linear():
            own = {weight: np.einsum("nto,nti->oi", dy, x, optimize=True)}
            if layer.bias:
                own[bias] = dy.sum(axis=(0, 1))
            return [dy @ weights[weight]], own
        case Attention():
            q, k, v, p = _attention(layer, np.concatenate(inputs, axis=-1))
            dy = _heads(dy, layer.heads)
            dp = dy @ v.swapaxes(-1, -2)
            ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) / math.sqrt(q.shape[-1])
            parts = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dy
            joined = [_joined(part) for part in parts]
            return (joined if layer.inputs else [np.concatenate(joined, axis=-1)]), {}
        case ReLU():
            return [dy * (x > 0)], {}
        case GELU():
            t = np.tanh(SCALE * (x + CUBE * x**3))
            return [dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SCALE * (1 + 3 * CUBE * x**2))], {}
        case Sigmoid():
            y = 1 / (1 + np.exp(-x))
            return [dy * y * (1 - y)], {}
        case Add():
            return [dy, dy], {}
        case TiedHead():
            tied, joined = f"{layer.embedding}.weight", _head_weights(layer, weights)
            gradient, width = np.einsum("nto,nti->oi", dy, x, optimize=True), weights[tied].shape[1]
            own = {tied: gradient[:, :width]}
            if joined.shape[1] > width:
                own[f"{layer.name}.dense.weight"] = gradient[:, width:]
            if layer.bias:
                own[bias] = dy.sum(axis=(0, 1))
            return [dy @ joined], own
    raise UsageError(f"the reference has no derivative for {layer!r}; add one")


def _head_weights(layer: TiedHead, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """The embedding's weights, with those of the head's own beside them."""
    tied, own = weights[f"{layer.embedding}.weight"], weights.get(f"{layer.name}.dense.weight")
    return tied if own is None else np.concatenate([tied, own], axis=1)


def _shifted(x: np.ndarray, by: int) -> np.ndarray:
    """Features of the token `by` further on, zeros outside of the sample."""
    y = np.zeros_like(x)
    y[:, : len(x[0]) - by] = x[:, by:] if by > 0 else 0
    if by < 0:
        y[:, -by:] = x[:, :by]
    return y


def _normalised(layer: LayerNorm, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features with mean 0 and variance 1, and what they were multiplied with."""
    inverse = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + layer.eps)
    return (x - x.mean(axis=-1, keepdims=True)) * inverse, inverse


def _attention(layer: Attention, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values (N, heads, T, d), and the probabilities (N, heads, T, T)."""
    q, k, v = (_heads(part, layer.heads) for part in np.split(x, 3, axis=-1))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if layer.causal:
        length = x.shape[1]
        scores = np.where(np.tri(length, length, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return q, k, v, p / p.sum(axis=-1, keepdims=True)


def _heads(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _joined(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
