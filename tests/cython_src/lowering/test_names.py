"""Names of layers and of a plan's own buffers cannot meet, whatever a user calls a layer."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

import forktask as ft

IMAGES = ft.Network("images", (3, 8, 8), (
    ft.Conv2d("c", 8, 3, 1), ft.BatchNorm("n"), ft.ReLU("r"), ft.Conv2d("d", 8, 3, 1), ft.Add("s", ("d", "r")),
    ft.MaxPool("p"), ft.Linear("f", 6), ft.ReLU("q"), ft.Linear("g", 2), ft.SoftmaxCrossEntropy("e"),
))  # fmt: skip
PLAIN = ft.Network("plain", (3, 16, 16), (
    ft.Conv2d("c", 16), ft.ReLU("r"), ft.MaxPool("p"), ft.Conv2d("d", 16), ft.ReLU("q"), ft.MaxPool("o"),
    ft.Linear("f", 6), ft.ReLU("s"), ft.Linear("g", 2), ft.SoftmaxCrossEntropy("e"),
))  # fmt: skip
TEXT = ft.Network("text", (8,), (
    ft.Embedding("t", 16, positions="w"), ft.LayerNorm("n"), ft.Linear("a", 48), ft.Attention("b", 2),
    ft.Linear("c", 16), ft.Add("s", ("c", "n")), ft.LayerNorm("m"), ft.Linear("f", 32), ft.GELU("u"),
    ft.Linear("g", 16), ft.TiedHead("h", "t"), ft.SoftmaxCrossEntropy("e"),
), ft.Tokens(16, 8))  # fmt: skip
CASES = {
    "images": (IMAGES, {}),
    "unfused": (IMAGES, {"fusion": "none"}),
    "tree": (IMAGES, {"weight_gradients": "tree"}),
    "recompute": (IMAGES, {"recompute": True, "memory": "shared", "optimizer": "adamw"}),
    "lanes": (PLAIN, {"layout": "nchw16"}),
    "nchw tree": (PLAIN, {"layout": "nchw", "weight_gradients": "tree"}),
    "text": (TEXT, {"sequence": 8}),
    "text, unfused": (TEXT, {"sequence": 8, "fusion": "none", "clip_norm": 1.0, "recompute": True, "memory": "shared"}),
}


def renamed(network, names):
    """The network with some layers under other names."""
    other = lambda name: names.get(name, name)  # noqa: E731
    layers = []
    for layer, sources in zip(network.layers, network.inputs().values(), strict=True):
        several = getattr(layer, "inputs", ())
        place = {"inputs": tuple(map(other, sources))} if several else {"after": other(sources[0])}
        layers.append(replace(layer, name=other(layer.name), **place))
    return replace(network, layers=tuple(layers))


def step(network, options, names):
    """What two steps leave: losses, and by plain names parameters, gradients and the maps that have a view."""
    plan = ft.lower(renamed(network, names), batch=5, **options)
    bound = ft.bind(plan)
    ft.initialise(bound, 1)
    random = np.random.default_rng(0)
    for name in ("dataset.images", "dataset.tokens", "dataset.labels"):
        if name in bound.arrays:
            array = bound.arrays[name]
            array[...] = random.standard_normal(array.shape) if name.endswith("images") else array
            if name.endswith("tokens"):
                array[...] = random.integers(0, 16, array.shape)
    bound.arrays["batch_order"][...] = np.arange(5)
    bound.arrays["learning_rates"][...] = 0.1
    with ft.executor("serial", 1) as executor:
        executor.prepare(bound)
        executor.run(2)
    parameters = plan.attributes["parameters"]
    shown = {*parameters, *(f"{name}.grad" for name in parameters)} & {*plan.attributes["aliases"], *parameters}
    maps = network.layers if plan.attributes["memory"] == "full" else ()  # else later ones lie where they were
    shown |= {layer.name for layer in maps if names.get(layer.name, layer.name) in plan.attributes["aliases"]}
    views = {name: np.array(bound.view(names.get(name, name))) for name in sorted(shown)}
    return {"losses": bound.arrays["losses"][:2].copy(), **views}


@pytest.mark.parametrize("case", CASES)
def test_a_layer_may_have_the_name_of_any_buffer_of_the_plan(case):
    """Check losses, gradients, parameters and maps, bit for bit, with layers called like transient buffers of the
    same network, one at a time for each buffer and then several at random."""
    network, options = CASES[case]
    plan = ft.lower(network, batch=5, **options)
    expected = step(network, options, {})
    kept = {layer.name for layer in network.layers} | {"input", "t", "w"}
    owners = {parameter.rpartition(".")[0] for parameter in plan.attributes["parameters"]}
    free = [layer.name for layer in network.layers if layer.name not in owners | {"e"}]
    hidden = [n for n, b in plan.buffers.items() if not b.persistent and n not in kept and not n.endswith(".grad")]
    random = Random(case)
    choices = [{random.choice(free): name} for name in hidden]
    for _ in range(20):
        chosen = random.sample(free, k=min(3, len(free)))
        choices.append(dict(zip(chosen, random.sample(hidden, k=len(chosen)), strict=True)))
        choices.append({chosen[0]: random.choice(hidden) + random.choice((".recomputed", ".link1", "'", ".gradient"))})
    for names in choices:
        got = step(network, options, names)
        wrong = [name for name in expected if not np.array_equal(got[name], expected[name])]
        assert not wrong and got.keys() == expected.keys(), (names, wrong)


@pytest.mark.parametrize("name", ["losses", "correct", "learning_rates", "batch_order", "c.weight.grad", "g.grad"])
def test_a_layer_may_not_have_the_name_of_another_view(name):
    """Check that `view` never shows one of two things under a name."""
    with pytest.raises(ft.UsageError, match=f"layer {name!r} of 'images' has the name of a gradient, a table or a log"):
        ft.lower(renamed(IMAGES, {"r": name}), batch=5)
