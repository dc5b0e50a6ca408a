"""Small networks of tokens, and data for them."""

import numpy as np

import forktask as ft
from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.lowering.lower import initialise
from forktask.cython_src.networks import gpt2, mobilebert

SMALL = gpt2.network("small", num_layers=2, features=24, heads=3, vocabulary=37, positions=12)
# No positions, no biases, attention in both directions, a tensor with three readers, sums, a GELU and a sigmoid that
# nothing includes, a head of its own.
BOTH_WAYS = ft.Network(
    "both_ways",
    (6,),
    (
        ft.Embedding("table", 6),
        ft.Linear("qkv", 18, bias=False),
        ft.Attention("attention", 2, causal=False),
        ft.Add("sum1", ("attention", "table")),
        ft.GELU("gelu"),
        ft.Add("sum2", ("gelu", "sum1")),
        ft.Add("sum3", ("sum2", "sum1")),
        ft.Sigmoid("sigmoid"),
        ft.LayerNorm("norm"),
        ft.Linear("left", 10),
        ft.Linear("right", 10, after="norm"),
        ft.GELU("gelu_right"),
        ft.Add("sum4", ("gelu_right", "left")),
        ft.Linear("head", 7, bias=False),
        ft.SoftmaxCrossEntropy(),
    ),
    ft.Tokens(7, 6),
)
# Two heads' worth of gradients for one table: a linear layer between reads the first product with it.
TWICE_TIED = ft.Network(
    "twice_tied",
    (6,),
    (
        ft.Embedding("wte", 8, positions="wpe"),
        ft.TiedHead("first", "wte"),
        ft.Linear("back", 8),
        ft.LayerNorm("norm"),
        ft.TiedHead("second", "wte"),
        ft.SoftmaxCrossEntropy(),
    ),
    ft.Tokens(9, 6),
)


SMALL_MOBILEBERT = {
    "num_layers": 2,
    "features": 24,
    "bottleneck": 12,
    "embedding": 6,
    "heads": 3,
    "feed_forwards": 2,
    "intermediate": 20,
    "vocabulary": 37,
    "positions": 12,
    "mask": 36,
}
MASKED = mobilebert.network("masked", **SMALL_MOBILEBERT)
CLASSIFIER = mobilebert.network("classifier", **SMALL_MOBILEBERT, classes=3)


def fill(bound, seed=0, rate=0.01):
    """Random parameters far from zero, tokens and order; a learning rate."""
    initialise(bound, seed)
    rng = np.random.default_rng(seed)
    arrays = bound.arrays
    for name in bound.plan.attributes["parameters"]:
        array = arrays[name]
        if array.ndim == 1:
            array += rng.normal(size=array.shape) * 0.2
        else:
            array *= 10
    tokens, order = arrays["dataset.tokens"], arrays["batch_order"]
    tokens[...] = rng.integers(bound.plan.attributes["vocabulary"], size=tokens.shape)
    if "dataset.labels" in arrays:
        labels = arrays["dataset.labels"]
        labels[...] = rng.integers(bound.plan.attributes["num_classes"], size=labels.shape)
        if labels.shape == tokens.shape:
            labels[rng.random(labels.shape) < 0.7] = IGNORED
    samples = (tokens.size - ("dataset.labels" not in arrays)) // bound.plan.attributes["sequence"]
    order[...] = rng.integers(samples, size=order.shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = rate


def batch_of(bound, iteration):
    """Tokens and targets of a step, (batch, sequence) each, or a class of each sample, (batch, 1)."""
    length, tokens = bound.plan.attributes["sequence"], bound.arrays["dataset.tokens"]
    order = bound.arrays["batch_order"]
    if "dataset.labels" in bound.arrays:
        chosen, labels = order[iteration % len(order)], bound.arrays["dataset.labels"]
        return [array.reshape(tokens.size // length, -1)[chosen] for array in (tokens, labels)]
    firsts = order[iteration % len(order)] * length
    return [np.stack([tokens[first + shift : first + shift + length] for first in firsts]) for shift in (0, 1)]
