"""Plans of MobileBERT: bits under every model, accesses, frozen layers, fusions, refusals. Losses and gradients are
compared with the float64 reference in `test_tokens`."""

import numpy as np
import pytest
from cython_src.lowering.test_tokens import CASES, MODELS, SMALL_SIZES, run
from cython_src.tokens_for_tests import CLASSIFIER, MASKED, batch_of, fill
from kinds import LONG

from cython_src import reference_tokens
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses, check_orders, find_unused_reads
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.layers import Attention, Embedding, Linear, Network, Softmax, Tokens
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.sampling.subject import result_hashes

BOTH = pytest.mark.parametrize("network", [MASKED, CLASSIFIER], ids=lambda network: network.name)


def test_the_public_network_has_its_parameters():
    """Check the number of parameters of `google/mobilebert-uncased` without its pooler, which has none: 24.58 million
    in the encoder."""
    shapes = get_network("mobilebert").parameter_shapes()
    encoder = [shape for name, shape in shapes.items() if not name.startswith("cls.")]
    assert sum(int(np.prod(shape)) for shape in encoder) == 24_581_888
    assert shapes["cls.predictions.dense.weight"] == (30522, 384) and shapes["cls.predictions.bias"] == (30522,)
    assert shapes["encoder.layer.23.attention.self.value.weight"] == (128, 512)
    assert shapes["encoder.layer.0.ffn.2.output.LayerNorm.weight"] == (128,)
    assert "encoder.layer.0.ffn.3.output.dense.weight" not in shapes


@pytest.mark.parametrize("case", ["by cost", "cut everywhere", "chain", "computed again", "nothing joined"])
def test_every_model_leaves_the_same_bits(case):
    """Check weights and losses of five steps with up to eight threads."""
    plan = lower(MASKED, **SMALL_SIZES, optimizer="adamw", **CASES[case])

    def hashes(spec, threads):
        bound = bind(plan)
        fill(bound)
        run(bound, 5, spec, threads)
        found = result_hashes(bound)
        assert found["finite"]
        return found

    expected = hashes("serial", 1)
    for model in MODELS:
        for threads in range(1, 9) if LONG else (2, 8):
            assert hashes(model, threads) == expected, (model, threads)


@pytest.mark.parametrize("case", ["cut everywhere", "sums joined to norms", "computed again"])
def test_memory_and_recomputation_leave_the_bits(case):
    """Check that a plan with other memory has the weights of one whose buffers are apart."""
    options = {key: value for key, value in CASES[case].items() if key not in ("memory", "recompute")}
    found = []
    for memory in ({}, {"memory": "shared"}, {"memory": "shared", "recompute": True}):
        bound = bind(lower(MASKED, **SMALL_SIZES, **options, **memory))
        fill(bound)
        run(bound, 3)
        found.append(result_hashes(bound)["weights_hash"])
    assert len({*found}) == 1


@BOTH
@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("case", ["by cost", "nothing joined", "cut everywhere", "sums joined to norms"])
def test_kernels_touch_what_they_declare(network, case, target):
    """Check accesses on poisoned memory, on a sample of each loop's blocks."""
    plan = lower(network, **SMALL_SIZES, **CASES[case])
    check_accesses(plan, target, initialise=fill, num_replays=1, blocks_per_loop=2)


@BOTH
@pytest.mark.parametrize("case", ["by cost", "cut everywhere"])
def test_blocks_declare_no_idle_read(network, case):
    """Check that every declared read is used, but for those that the data decide: rows of the embedding, what is behind
    a ReLU, ignored labels and their logits, and the neighbours of tokens at the ends of samples."""
    plan = lower(network, **SMALL_SIZES, **CASES[case])
    found = find_unused_reads(plan, "float64", initialise=fill, num_replays=1, blocks_per_loop=2)
    by_data = ("embeddings.word_embeddings.weight", "targets", "cls.predictions", "embeddings.trigram.gradient")
    assert [(task, name) for task, name, _ in found if name not in by_data and not name.endswith(".act")] == []


def test_random_orders_leave_the_serial_bits():
    """Check random legal orders of a plan that is cut everywhere, iterations overlapping."""
    bound = bind(lower(MASKED, **SMALL_SIZES, **CASES["cut everywhere"]))
    fill(bound)
    check_orders(bound, num_orders=10, num_replays=2)


@pytest.mark.parametrize(
    "frozen",
    [
        "embeddings.word_embeddings",
        "embeddings.position_embeddings",
        "embeddings.token_type_embeddings",
        "embeddings,encoder.layer.0",
        "encoder.layer.1.attention.self.query,encoder.layer.0.bottleneck",
        "cls.predictions.dense,cls.predictions.transform",
    ],
)
def test_frozen_layers_keep_their_weights(frozen):
    """Check that frozen parameters keep their bits and that the others have the reference's gradients."""
    bound = bind(lower(MASKED, **SMALL_SIZES, frozen=frozen), target="float64")
    fill(bound)
    before = {name: bound.arrays[name].copy() for name in bound.plan.attributes["parameters"]}
    step = reference_tokens.forward_backward(MASKED.with_sequence(6), before, *batch_of(bound, 0))
    run(bound, 1)
    for name, value in before.items():
        if any(name.startswith(f"{prefix}.") for prefix in frozen.split(",")):
            np.testing.assert_array_equal(bound.arrays[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(bound.view(f"{name}.grad"), step.gradients[name], atol=1e-10, err_msg=name)


@BOTH
def test_phases_without_training_agree_with_the_reference(network):
    """Check loss, right answers and logits."""
    bound = bind(lower(network, **SMALL_SIZES, phase="evaluate"), target="float64")
    fill(bound)
    run(bound, 1)
    parameters = {name: bound.arrays[name] for name in bound.plan.attributes["parameters"]}
    step = reference_tokens.forward(network.with_sequence(6), parameters, *batch_of(bound, 0))
    assert bound.arrays["losses"][0] == pytest.approx(step.loss) and bound.arrays["correct"][0] == step.correct
    forward = bind(lower(network, **SMALL_SIZES, phase="forward"), storage=bound.storage, target="float64")
    run(forward, 1)
    np.testing.assert_allclose(forward.view("logits"), step.activations[network.layers[-2].name], atol=1e-10)


def test_activations_and_sums_take_no_loops():
    """Check that ReLU and sums are parts of linear layers, and that only the head's ReLU has a loop of its own."""
    loops = lower(MASKED, **SMALL_SIZES).loops
    assert [loop.layer for loop in loops if loop.kernel.startswith("tokens_relu")] == [
        "cls.predictions.transform.act"
    ] * 2
    assert not any(loop.kernel == "tokens_add" and loop.phase == "forward" for loop in loops)


@pytest.mark.parametrize(
    ("layers", "answers", "message"),
    [
        (
            (
                Embedding("a", 6),
                Linear("q", 6),
                Linear("k", 6, after="a"),
                Linear("v", 6, after="a"),
                Attention("b", 2, inputs=("q", "k", "v")),
                Linear("c", 6, after="q"),
                Attention("d", 2, inputs=("b", "c", "v")),
                Softmax(),
            ),
            "next",
            "must be linear layers that nothing else reads, got 'q'",
        ),
        ((Embedding("a", 6), Linear("b", 5), Softmax()), "class", "a classifier of tokens must end"),
    ],
)
def test_what_has_no_kernels_is_refused(layers, answers, message):
    """Check that each refusal is a sentence that says what is wrong."""
    with pytest.raises(UsageError, match=message):
        lower(Network("bad", (4,), layers, Tokens(6, 8, answers)), batch=2, sequence=4)
