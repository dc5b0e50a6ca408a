"""Random networks with random options are refused in a sentence, or compute right under every model."""

import contextlib
import dataclasses
import os

import numpy as np
import pytest
from cython_src.networks_for_tests import SMALL
from cython_src.tokens_for_tests import TWICE_TIED
from kinds import LONG
from random_networks import check as checks
from random_networks.cases import Case, draw
from random_networks.check import Deviation, check

import forktask as ft
from cython_src import reference
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.convolution.algorithms import CONV_OPTIONS
from forktask.cython_src.kernels.interface.kernel_spec import registered
from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.cython_src.plan.chained_sums import FORMS
from forktask.cython_src.plan.model import READ
from forktask.experiments.peers.torch_network import torch_network

KNOWN, OF_A_TEST = 240, 10
NETWORKS = int(os.environ.get("STRESS_NETWORKS", 2000 if LONG else KNOWN))
FIRST = int(os.environ.get("STRESS_SEED", 0))


@pytest.mark.parametrize("first", range(FIRST, FIRST + NETWORKS, OF_A_TEST))
def test_networks_are_refused_in_a_sentence_or_compute_right(first):
    """Check ten networks; what fails is printed as code."""
    accepted = 0
    for seed in range(first, first + OF_A_TEST):
        case = draw(seed)
        try:
            accepted += check(case)
        except Deviation as error:
            raise AssertionError(f"network {seed}: {error}\n{case.code}") from error
    assert accepted >= OF_A_TEST // 3 or first >= KNOWN


END = ft.Linear("fc", 2), ft.SoftmaxCrossEntropy()
AFTER_POOL = ft.BatchNorm("bn"), ft.ReLU("r"), ft.GlobalAvgPool("pool"), *END
# What random networks have found, made smaller.
FOUND = {
    "features into a map with a halo": ((4, 4, 4), (ft.Conv2d("l0", 16), *END), {"batch": 5}),
    "the same behind padding": ((1, 8, 8), (ft.Conv2d("a", 1, padding=0), ft.Conv2d("b", 1, padding=1), *END), {}),
    "the same behind ReLU": ((1, 4, 4), (ft.Conv2d("a", 3), ft.Conv2d("b", 3), ft.ReLU("r"), *END), {}),
    "ReLU beside a padded map": (
        (1, 2, 2),
        (ft.Conv2d("a", 1), ft.ReLU("r"), ft.Conv2d("b", 1), *END),
        {"fusion": "none", "layout": "nchw"},
    ),
    "a pool first": ((3, 33, 33), (ft.AveragePool("s", 2), ft.Conv2d("c", 16, 3, 1, bias=False), *AFTER_POOL), {}),
    "the largest of the input": ((3, 5, 5), (ft.MaxPool("s", 2), ft.Conv2d("c", 4, 3, 1), *AFTER_POOL), {}),
    "ReLU6 first": ((5, 3, 3), (ft.ReLU6("s"), ft.GlobalAvgPool("pool"), *END), {}),
    "dropout first": ((3, 3, 3), (ft.Dropout("s"), ft.GlobalAvgPool("pool"), *END), {}),
    "a sum of the input": ((3, 3, 3), (ft.Add("s", ("input", "input")), ft.GlobalAvgPool("pool"), *END), {}),
    "a norm first": ((3, 4, 4), AFTER_POOL, {}),
    "a norm first, evaluated": ((4, 4, 4), AFTER_POOL, {"phase": "evaluate"}),
    "a norm first, forward": ((3, 4, 4), AFTER_POOL, {"phase": "forward"}),
    "groups of a narrow input": ((3, 1, 1), (ft.Conv2d("c", 6, 3, 1, groups=3, bias=False), *END), {}),
    "two ReLUs before softmax": (
        (3, 4, 14),
        (ft.Linear("f", 7), ft.ReLU("r"), ft.ReLU("s"), ft.SoftmaxCrossEntropy()),
        {"batch": 33, "granularity": "images=2"},
    ),
    "windows of padding alone": (
        (4, 2, 5),
        (ft.Conv2d("c", 4, 2, 2, stride=2, groups=4, bias=False), ft.GlobalAvgPool("pool"), *END),
        {"batch": 16, "granularity": "images=3,rows=1"},
    ),
    "nothing is trained": ((2, 3, 3), END, {"clip_norm": 1.0, "frozen": "fc"}),
    "ReLU before softmax": ((1, 1, 1), (ft.Linear("f", 1), ft.ReLU("r"), ft.SoftmaxCrossEntropy()), {"layout": "nchw"}),
    "a halo that is added to": (
        (17, 4, 4),
        (
            ft.Conv2d("a", 17, 1, 0),
            ft.Add("s", ("input", "a")),
            ft.Conv2d("b", 16, 3, 1, bias=False),
            ft.Conv2d("c", 17, 3, 1),
            ft.Add("t", ("s", "c")),
            ft.GlobalAvgPool("pool"),
            ft.SoftmaxCrossEntropy(),
        ),
        {"batch": 3},
    ),
    "a sum's gradient, to which a third reader adds": (
        (3, 4, 4),
        (
            ft.Conv2d("a", 16, 3, 1),
            ft.Conv2d("b", 16, 3, 1),
            ft.ReLU6("r", after="a"),
            ft.Conv2d("c", 16, 3, 1),
            ft.Add("s", ("a", "b")),
            ft.Add("t", ("s", "c")),
            ft.GlobalAvgPool("pool"),
            *END,
        ),
        {},
    ),
    "a shortcut from dropout": (
        (4, 2, 1),
        (ft.Dropout("d"), ft.Conv2d("c", 4, 3, dilation=2, bias=False, after="input"), ft.Add("s", ("c", "d")), *END),
        {"phase": "evaluate", "granularity": "rows=1"},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name):
    """Check networks that once raced, read memory that nobody had written, or wrote beside their buffers."""
    shape, layers, options = FOUND[name]
    models = [("forkjoin", 2), ("taskgraph", 2), ("taskiter", 2), ("taskiter:placement=stealing", 3)]
    case = Case(ft.Network("found", shape, layers), {"batch": 1, **options}, seed=4)  # a seed with the NumPy forms
    assert check(case, models)


@pytest.mark.parametrize("name", SMALL)
def test_small_forms_of_the_networks_compute_right(name):
    """Check three training steps of each kind of network, with another optimizer and smoothed labels or clipping."""
    for options in ({"optimizer": "adamw", "label_smoothing": 0.1}, {"clip_norm": 0.5}):
        assert check(Case(SMALL[name], {"batch": 6, "granularity": "images=3", **options}, seed=4))


TWO = convolutional_classifier("two convolutions", (2, 16, 24), (3, 6), 4)
IN_THE_LANES = [conv for conv in CONV_OPTIONS if conv not in ("winograd2", "winograd4")]
# Kernels of images and pixels in the lanes that few networks have: two 5x5 convolutions with what follows joined.
CHAINS = [
    {"batch": 17},
    {"batch": 17, "weight_gradients": "chain", "memory": "shared"},
    {"batch": 40, "granularity": "images=32,channels=4,rows=3", "fusion": "none"},
    {"batch": 3, "layout": "nchw", "granularity": "images=1,channels=2,rows=6"},
    *({"batch": 17, "conv": conv, "fusion": fusion} for conv in IN_THE_LANES for fusion in ("all", "none")),
]


def case_of(chain):
    return Case(TWO, {"layout": "nchw16", **chain}, seed=4 * CHAINS.index(chain))  # NumPy forms, all instruction sets


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_chains_compute_right_with_every_algorithm(chain):
    """Check every algorithm of a convolution in the lanes, with what follows joined and apart."""
    models = [("forkjoin", 2), ("taskiter", 2), ("taskiter:placement=stealing", 3)]
    assert check(case_of(chain), models)


@pytest.mark.parametrize("form", FORMS)
def test_two_heads_of_one_table_add_to_one_gradient(form):
    """Check that the sums of the second head, in any form, begin with what the first one has left there."""
    options = {"batch": 3, "sequence": 6, "granularity": "images=1", "weight_gradients": form}
    assert check(Case(TWICE_TIED, options, seed=4), [("taskiter", 2)])


def test_every_kernel_is_checked():
    """Check that the networks of this file have every kernel of the package but those without a network."""
    result = [Case(ft.Network("found", shape, layers), {"batch": 1, **o}) for shape, layers, o in FOUND.values()]
    kernels = set()
    for case in (*map(draw, range(KNOWN)), *result, *map(case_of, CHAINS)):
        with contextlib.suppress(UsageError):
            kernels |= {loop.kernel for loop in checks._lower(case).loops}
    missing = {name for name in registered() if not name.startswith(("test", "task_bench", "reduction"))} - kernels
    assert missing <= {"hash_chain", "replica", "walk"}


CHAIN = Case(
    ft.Network("chain", (4, 4, 4), (ft.Conv2d("l0", 16), ft.ReLU("r"), ft.Linear("fc", 2), ft.SoftmaxCrossEntropy())),
    {"batch": 5},
)


def without(plan, loop_name, buffer):
    """The plan with a loop's blocks not declaring what they read of a buffer."""
    loops = []
    for loop in plan.loops:
        if loop.name == loop_name:
            blocks = [
                dataclasses.replace(b, accesses=tuple(a for a in b.accesses if (a.buffer, a.kind) != (buffer, READ)))
                for b in loop.blocks
            ]
            assert blocks != list(loop.blocks)
            loop = dataclasses.replace(loop, blocks=tuple(blocks))
        loops.append(loop)
    return dataclasses.replace(plan, loops=tuple(loops))


@pytest.mark.parametrize("kind", ["accesses", "float32"])
def test_a_wrong_plan_is_found(monkeypatch, kind):
    """Negative controls: the fully connected layer does not say that it reads its input; another momentum."""
    plan = checks._lower(CHAIN)
    source = next(loop for loop in plan.loops if loop.name == "fc").operands["input"]
    other = dataclasses.replace(plan, attributes={**plan.attributes, "momentum": 0.1})
    monkeypatch.setattr(checks, "_lower", lambda case: without(plan, "fc", source) if kind == "accesses" else other)
    with pytest.raises(Deviation) as caught:
        check(CHAIN)
    assert caught.value.kind == kind


def test_memory_that_is_read_before_it_is_written_is_found():
    """Negative control: without the loop of the convolution two poisons leave two results."""
    plan = checks._lower(CHAIN)
    spoiled = dataclasses.replace(plan, loops=tuple(loop for loop in plan.loops if loop.name != "l0"))
    with pytest.raises(Deviation) as caught:
        checks._compare_bits(
            checks._run(CHAIN, spoiled, "serial", 1, "nan"), checks._run(CHAIN, spoiled, "serial", 1, "huge"), "memory"
        )
    assert caught.value.kind == "bits"


def torch_step(network, parameters, samples, labels):
    """Mean loss and gradients of all parameters by PyTorch's modules in float64."""
    import torch

    module = torch_network(network).double()
    own = dict(module.named_parameters())
    assert own.keys() == parameters.keys()
    for name, value in parameters.items():
        own[name].data[...] = torch.tensor(value)
    logits = module(torch.tensor(samples, dtype=torch.int64 if network.tokens else torch.float64))
    targets = torch.tensor(np.array(labels), dtype=torch.int64).reshape(-1)
    function, logits = torch.nn.functional.cross_entropy, logits.reshape(len(targets), -1)
    loss = function(logits, targets, ignore_index=IGNORED, reduction="sum") / max(int((targets != IGNORED).sum()), 1)
    if own:  # a network of poolings alone learns nothing
        loss.backward()
    return loss.item(), {name: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for name, p in own.items()}


@pytest.mark.torch
@pytest.mark.parametrize("seed", range(400 if LONG else 60))
def test_the_reference_is_pytorch(seed):
    """Check loss and gradients of the reference against PyTorch's own layers in float64, for random networks."""
    case = draw(seed)
    network = case.network
    kept = [dataclasses.replace(la, rate=0.0) if isinstance(la, ft.Dropout) else la for la in network.layers]
    network = dataclasses.replace(network, layers=tuple(kept))
    options = {"batch": case.options["batch"]} | ({"sequence": case.options["sequence"]} if network.tokens else {})
    bound = bind(lower(network, num_images=options["batch"] + 1, num_batches=2, **options), target="float64")
    checks.fill(bound, case.seed)
    arrays = bound.arrays
    parameters = {name: np.array(arrays[name]) for name in network.parameter_shapes()}
    if network.tokens:
        data = checks.batch_of(bound, 0)
    else:
        chosen = arrays["batch_order"][0]
        data = arrays["dataset.images"][chosen], arrays["dataset.labels"][chosen]
    step = reference.forward_backward(network, parameters, *data)
    loss, gradients = torch_step(network, parameters, *data)
    assert step.loss == pytest.approx(loss, rel=1e-9)
    for name, expected in gradients.items():
        np.testing.assert_allclose(step.gradients[name], expected, rtol=0, atol=1e-9 * max(np.abs(expected).max(), 1))
