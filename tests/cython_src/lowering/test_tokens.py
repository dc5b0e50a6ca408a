"""Plans of networks of tokens: against the float64 reference, under every model, accesses, edges, refusals."""

import numpy as np
import pytest
from cython_src.tokens_for_tests import BOTH_WAYS, CLASSIFIER, MASKED, SMALL, TWICE_TIED, batch_of, fill
from kinds import LONG

from cython_src import reference_tokens
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses, check_orders, find_unused_reads, span_in_tasks
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.interface.kernel_spec import registered
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.layers import Embedding, Linear, Network, ReLU6, Softmax, TiedHead, Tokens
from forktask.cython_src.networks.registry import get_network, network_names
from forktask.cython_src.plan.dependences import record_graph
from forktask.experiments.sampling.models import make_executor
from forktask.experiments.sampling.subject import fill_dataset, result_hashes

SMALL_SIZES = {"batch": 3, "sequence": 6, "num_images": 5, "num_batches": 2, "num_iterations_logged": 10}
CASES = {
    "by cost": {},
    "nothing joined": {"fusion": "none"},
    "activations joined": {"fusion": "activation"},
    "sums joined": {"fusion": "residual"},
    "loss joined": {"fusion": "loss"},
    "sums joined to norms": {"fusion": "norm"},
    "sums joined to norms, computed again": {"fusion": "norm", "memory": "shared", "recompute": True},
    "cut everywhere": {"granularity": "images=1,channels=5,rows=4,heads=1"},
    "slices of two samples": {"granularity": "images=2,rows=4", "fusion": "none"},
    "chain": {"granularity": "images=1", "weight_gradients": "chain"},
    "shared memory": {"memory": "shared"},
    "computed again": {"memory": "shared", "recompute": True, "granularity": "images=2,heads=2"},
    "clipped": {"clip_norm": 0.1, "decay": "matrices", "granularity": "images=1,channels=16"},
}


def run(bound, count, spec="serial", threads=1):
    """Run some steps from the first one on."""
    with make_executor(spec, threads) as executor:
        executor.prepare(bound)
        executor.run(count)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "network", [SMALL, BOTH_WAYS, TWICE_TIED, MASKED, CLASSIFIER], ids=lambda network: network.name
)
def test_plans_equal_the_reference_in_float64(network, case):
    """Check losses, right answers, all gradients and parameters of three AdamW steps."""
    options = {**SMALL_SIZES, "optimizer": "adamw", "weight_decay": 0.1, **CASES[case]}
    bound = bind(lower(network, **options), target="float64")
    fill(bound)
    names = bound.plan.attributes["parameters"]
    peer = reference_tokens.AdamW(
        {name: bound.arrays[name] for name in names},
        0.01,
        weight_decay=0.1,
        decay=options.get("decay", "all"),
        clip_norm=options.get("clip_norm", 0.0),
    )
    for iteration in range(3):
        step = peer.step(network.with_sequence(6), *batch_of(bound, iteration))
        with make_executor("serial", 1) as executor:
            executor.prepare(bound)
            executor.run(1, iteration)
        assert bound.arrays["losses"][iteration] == pytest.approx(step.loss, rel=1e-10)
        assert bound.arrays["correct"][iteration] == step.correct
        for name in names:
            np.testing.assert_allclose(bound.view(f"{name}.grad"), step.gradients[name], atol=1e-10, err_msg=name)
            np.testing.assert_allclose(bound.arrays[name], peer.parameters[name], atol=1e-10, err_msg=name)


def test_ten_compiled_steps_follow_the_reference():
    """Check the losses of ten AdamW steps of the network of bytes within 1e-4 of those in float64."""
    bound = bind(
        lower("gpt2_tiny", batch=2, sequence=32, optimizer="adamw", num_images=20, num_batches=10, clip_norm=1.0)
    )
    fill_dataset(bound, 0)
    initialise(bound, 0)
    bound.arrays["learning_rates"][...] = 1e-3
    parameters = {name: bound.arrays[name] for name in bound.plan.attributes["parameters"]}
    peer = reference_tokens.AdamW(parameters, 1e-3, clip_norm=1.0)
    network = get_network("gpt2_tiny").with_sequence(32)
    losses = [peer.step(network, *batch_of(bound, iteration)).loss for iteration in range(10)]
    run(bound, 10, "taskiter", 2)
    np.testing.assert_allclose(bound.arrays["losses"][:10], losses, rtol=1e-4)


def test_activations_can_be_looked_at():
    """Check that tensors go by the names of layers, as (batch, sequence, features), and phases without training."""
    bound = bind(lower(SMALL, **SMALL_SIZES, fusion="none", phase="evaluate"), target="float64")
    fill(bound)
    run(bound, 1)
    tokens, targets = batch_of(bound, 0)
    parameters = {name: bound.arrays[name] for name in bound.plan.attributes["parameters"]}
    step = reference_tokens.forward(SMALL.with_sequence(6), parameters, tokens, targets)
    np.testing.assert_array_equal(bound.view("input"), tokens)
    for name, expected in step.activations.items():
        if name not in ("input", "softmax"):
            np.testing.assert_allclose(bound.view(name), expected, atol=1e-10, err_msg=name)
    assert bound.arrays["losses"][0] == pytest.approx(step.loss) and bound.arrays["correct"][0] == step.correct
    forward = bind(lower(SMALL, **SMALL_SIZES, phase="forward"), storage=bound.storage, target="float64")
    run(forward, 1)
    np.testing.assert_allclose(forward.view("logits"), step.activations["lm_head"], atol=1e-10)


@pytest.mark.parametrize("frozen", ["wte", "wpe", "wte,wpe", "h.0", "h.1.attn,ln_f", "wte,wpe,h.0,h.1.ln_1"])
def test_frozen_layers_keep_their_weights(frozen):
    """Check that frozen parameters keep their bits, that the others have the reference's gradients, and that a plan
    with less to learn has fewer loops."""
    bound = bind(lower(SMALL, **SMALL_SIZES, frozen=frozen), target="float64")
    fill(bound)
    before = {name: bound.arrays[name].copy() for name in bound.plan.attributes["parameters"]}
    step = reference_tokens.forward_backward(SMALL.with_sequence(6), before, *batch_of(bound, 0))
    run(bound, 1)
    for name, value in before.items():
        if any(name.startswith(f"{prefix}.") for prefix in frozen.split(",")):
            np.testing.assert_array_equal(bound.arrays[name], value)
        else:
            np.testing.assert_allclose(bound.view(f"{name}.grad"), step.gradients[name], atol=1e-10, err_msg=name)
            assert (bound.arrays[name] != value).any()
    assert len(bound.plan.loops) < len(lower(SMALL, **SMALL_SIZES).loops)
    check_accesses(bound.plan, "cpu", initialise=fill, num_replays=1, blocks_per_loop=1)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_may_be_for_matrices_alone(optimizer):
    """Check that the option changes vectors and no matrices, and leaves matrices their decay, of images too."""
    for network, options in ((SMALL, SMALL_SIZES), (get_network("lenet5"), {"batch": 3})):
        found = {}
        for decay in ("all", "matrices"):
            plan = lower(network, optimizer=optimizer, weight_decay=0.5, decay=decay, momentum=0.0, **options)
            bound = bind(plan)
            fill_dataset(bound, 0)
            initialise(bound, 0)
            bound.arrays["learning_rates"][...] = 0.01
            for name in plan.attributes["parameters"]:
                bound.arrays[name][...] += 0.5  # biases begin at zero, which does not decay
            run(bound, 1)
            found[decay] = {name: bound.arrays[name].copy() for name in plan.attributes["parameters"]}
        for name, value in found["all"].items():
            assert (value == found["matrices"][name]).all() == (value.ndim > 1), name


def test_initial_weights_have_the_deviations_of_their_layers():
    """Check matrices, projections onto the residual, norms and biases."""
    bound = bind(lower("gpt2_tiny"))
    initialise(bound, 1)
    arrays = bound.arrays
    assert arrays["wte.weight"].std() == pytest.approx(0.02, rel=0.02)
    assert arrays["h.1.mlp.c_proj.weight"].std() == pytest.approx(0.01, rel=0.02)
    assert (arrays["h.0.ln_1.weight"] == 1).all() and (arrays["h.0.mlp.c_fc.bias"] == 0).all()


MODELS = ("forkjoin", "tasks:taskwait=none", "taskgraph", "taskiter", "taskiter:placement=partitioned")


@pytest.mark.parametrize("case", ["by cost", "cut everywhere", "chain", "computed again", "clipped", "nothing joined"])
def test_every_model_leaves_the_same_bits(case):
    """Check weights and losses of ten steps with one to four threads."""
    plan = lower(SMALL, **SMALL_SIZES, optimizer="adamw", **CASES[case])

    def hashes(spec, threads):
        bound = bind(plan)
        fill(bound)
        run(bound, 10, spec, threads)
        found = result_hashes(bound)
        assert found["finite"]
        return found

    expected = hashes("serial", 1)
    for model in MODELS:
        for threads in (1, 2, 3, 4) if LONG else (2, 4):
            assert hashes(model, threads) == expected, (model, threads)


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_touch_what_they_declare(case, target):
    """Check accesses on poisoned memory, on a sample of each loop's blocks."""
    for network in (SMALL, BOTH_WAYS):
        plan = lower(network, **SMALL_SIZES, optimizer="adamw", **CASES[case])
        check_accesses(plan, target, initialise=fill, num_replays=1, blocks_per_loop=2)


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("phase", ["forward", "evaluate"])
def test_kernels_of_other_phases_touch_what_they_declare(phase, target):
    """Check accesses of the plans that do not train."""
    check_accesses(lower(SMALL, **SMALL_SIZES, phase=phase), target, initialise=fill, num_replays=1)


def test_every_kernel_of_tokens_is_in_a_checked_plan():
    """Check that the plans whose accesses are checked have each kernel, but for those of MobileBERT."""
    plans = [
        lower(net, **SMALL_SIZES, optimizer="adamw", **case) for net in (SMALL, BOTH_WAYS) for case in CASES.values()
    ]
    plans.append(lower(SMALL, **SMALL_SIZES, phase="evaluate"))
    kinds = ("tokens_load", "tokens_add", "embedding_", "linear_", "layernorm_", "attention_", "gelu_", "vocabulary_")
    wanted = {name for name in registered() if name.startswith(kinds)}
    assert len(wanted) >= 18 and wanted <= {loop.kernel for plan in plans for loop in plan.loops}


@pytest.mark.parametrize("case", ["by cost", "cut everywhere", "slices of two samples", "chain"])
def test_blocks_declare_no_idle_read(case):
    """Check that every declared read is used. Which rows of the embedding a block reads is the tokens' business: it
    waits for all of them."""
    plan = lower(SMALL, **SMALL_SIZES, **CASES[case])
    found = find_unused_reads(plan, "float64", initialise=fill, num_replays=1, blocks_per_loop=2)
    assert [
        (task, buffer) for task, buffer, _ in found if (task.partition("[")[0], buffer) != ("wte", "wte.weight")
    ] == []


@pytest.mark.parametrize("memory", ["full", "shared"])
def test_random_orders_leave_the_serial_bits(memory):
    """Check random legal orders of a plan that is cut everywhere, iterations overlapping."""
    plan = lower(SMALL, **SMALL_SIZES, **CASES["cut everywhere"], memory=memory)
    bound = bind(plan)
    fill(bound)
    check_orders(bound, num_orders=20, num_replays=2)


ONE_BLOCK = gpt2.network("one_block", num_layers=1, features=32, heads=2, vocabulary=64, positions=8)
# load, embedding; ln_1, c_attn, attn, c_proj, ln_2, c_fc, c_proj; ln_f, lm_head; the loss and the way back; the
# gradient of the tokens' table and its update.
SPAN = 2 + 7 + 2 + 1 + 2 + 7 + 1 + 1


@pytest.mark.parametrize("granularity", ["images=64", "images=1", "images=1,rows=4,heads=1", "images=64,channels=16"])
def test_the_longest_chain_is_that_of_the_layers(granularity):
    """Check that a step's span is one task of each layer there and back, however loops are cut; where keys are, the
    parts of gradients of queries are added in one task more."""
    plan = lower(ONE_BLOCK, batch=4, sequence=8, granularity=granularity)
    assert span_in_tasks(record_graph(plan.accesses)) == SPAN + ("rows" in granularity)


def test_edges_grow_with_the_blocks_and_no_faster():
    """Check that each further sample brings 26 tasks, one a loop of the step up to the updates, and as many edges as
    the one before it."""
    plans = [lower(ONE_BLOCK, batch=batch, sequence=8, granularity="images=1") for batch in (1, 2, 3, 4)]
    assert [plan.num_tasks for plan in plans] == [45 + 26 * more for more in range(4)]
    assert [record_graph(plan.accesses).num_edges for plan in plans] == [189 + 169 * more for more in range(4)]


def test_auto_has_blocks_for_eight_threads():
    """Check that products of the 124M network, of a batch of 4 and of a single long sample, have 16 blocks or more, of
    at most 256 rows, and that short loops are not cut."""
    for options in ({"batch": 4, "sequence": 64}, {"batch": 1, "sequence": 1024}):
        for loop in lower("gpt2", phase="forward", **options).loops:
            if loop.kernel in ("linear_forward", "attention_forward"):
                assert 16 <= loop.num_blocks <= 64, (loop, loop.num_blocks)
    assert max(loop.num_blocks for loop in lower("gpt2_tiny", batch=1, sequence=16).loops) <= 16


def test_long_factors_are_read_for_wide_blocks():
    """Check that the vocabulary's gradient, 51 MB for 256 tokens, is read for 96 features of its input at a time, and
    that products whose gradient stays in a cache keep blocks of all these rows."""
    shapes = {
        loop.name: {(r1 - r0, c1 - c0) for r0, r1, c0, c1 in (block.bounds for block in loop.blocks)}
        for loop in lower("gpt2", batch=4, sequence=64).loops
        if loop.kernel == "linear_backward_data"
    }
    assert shapes.pop("lm_head.data_gradient") == {(128, 96)}
    assert {rows for blocks in shapes.values() for rows, _ in blocks} == {256}


def test_partial_gradients_of_queries_are_bounded():
    """Check that a sample's keys have 8 slices at most backward, however fine the cut is, and one where samples and
    heads are blocks enough."""
    sizes = {"sequence": 64, "num_batches": 1}
    network = gpt2.network("long", num_layers=1, features=32, heads=2, vocabulary=64, positions=64)
    for options, slices in (
        ({"batch": 1, "granularity": "images=1,rows=1,heads=1"}, 8),
        ({"batch": 1, "granularity": "images=1,rows=40"}, 2),
        ({"batch": 8}, 1),
    ):
        plan = lower(network, **sizes, **options)
        assert (
            max(block.bounds[-1] for loop in plan.loops if loop.kernel == "attention_backward" for block in loop.blocks)
            == slices - 1
        )
        parts = [buffer for buffer in plan.buffers.values() if buffer.name.endswith("query_parts")]
        assert [buffer.shape for buffer in parts] == [((slices - 1) * 64, 32)] * (slices > 1)


def test_fusions_take_loops_away():
    """Check which loops each fusion spares."""
    kernels = {
        fusion: {loop.kernel for loop in lower(SMALL, **SMALL_SIZES, fusion=fusion).loops}
        for fusion in ("none", "activation", "residual", "norm", "loss")
    }
    apart = {"gelu_forward", "gelu_backward", "tokens_add", "vocabulary_logsumexp", "vocabulary_gradient"}
    assert apart <= kernels["none"]
    assert apart - kernels["activation"] == {"gelu_forward", "gelu_backward"}
    assert apart - kernels["residual"] == {"tokens_add"}
    assert apart - kernels["loss"] == {"vocabulary_logsumexp", "vocabulary_gradient"}
    assert kernels["norm"] == kernels["none"]
    plans = {
        fusion: lower(BOTH_WAYS, **SMALL_SIZES, fusion=fusion, phase="forward").loops for fusion in ("none", "norm")
    }
    assert {loop.name for loop in plans["none"]} - {loop.name for loop in plans["norm"]} == {"sum3"}
    (norm,) = (loop for loop in plans["norm"] if loop.kernel == "layernorm_forward")
    assert norm.operands["residual"] == "sum1" and "sum" not in norm.operands  # nothing else reads it
    (kept,) = (loop for loop in lower(SMALL, **SMALL_SIZES, fusion="norm").loops if loop.name == "h.1.ln_2")
    assert kept.operands["sum"] == "h.1.attn.sum"


@pytest.mark.parametrize("network", [SMALL, BOTH_WAYS, MASKED], ids=lambda network: network.name)
def test_sums_in_norms_leave_the_bits(network):
    """Check that the weights of three steps, and logits, are those of a plan with a loop for each sum."""
    found = {}
    for fusion in ("none", "norm"):
        bound = bind(lower(network, **SMALL_SIZES, optimizer="adamw", fusion=fusion))
        fill(bound)
        run(bound, 3)
        forward = bind(lower(network, **SMALL_SIZES, fusion=fusion, phase="forward"), storage=bound.storage)
        run(forward, 1)
        found[fusion] = result_hashes(bound), forward.view("logits").tobytes()
    assert found["none"] == found["norm"]


def test_computing_again_takes_less_memory():
    """Check that recomputation needs less memory than sharing, and sharing less than neither."""
    options = ({}, {"memory": "shared"}, {"memory": "shared", "recompute": True})
    sizes = [sum(lower("gpt2_small", **o).memory_bytes().values()) for o in options]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        ("gpt2_tiny", {"sequence": 257}, r"sequence must be in \[1, 256\]"),
        ("gpt2_tiny", {"layout": "channels"}, "layers must be .* got Embedding 'wte'; use layout 'tokens'"),
        ("gpt2_tiny", {"label_smoothing": 0.1}, "label_smoothing must be 0"),
        ("gpt2_tiny", {"frozen": "wpq"}, "frozen must name layers with parameters"),
        ("lenet5", {"layout": "tokens"}, "layers must be .* got Convolution 'conv1'"),
        ("lenet5", {"sequence": 32}, "sequence is an option of networks of tokens"),
        ("lenet5", {"granularity": "heads=2"}, "leave out heads"),
        (Network("bad", (4,), (Embedding("a", 4), Linear("b", 5), Softmax()), Tokens(6, 8)), {}, "6 features, one for"),
        (Network("bad", (4,), (Embedding("a", 4), TiedHead("b", "a")), Tokens(6, 8)), {}, "must end with Softmax"),
        (
            Network("bad", (4,), (Embedding("a", 6), ReLU6("b"), TiedHead("c", "a"), Softmax()), Tokens(6, 8)),
            {},
            "got ReLU6 'b'",
        ),
    ],
)
def test_what_has_no_kernels_is_refused(network, options, message):
    """Check that each refusal is a sentence that says what is wrong."""
    with pytest.raises(UsageError, match=message) as caught:
        lower(network, batch=2, **{"sequence": 4 if isinstance(network, Network) else 64, **options})
    assert "\n" not in str(caught.value)


def test_a_network_of_tokens_has_a_batch_of_four():
    """Check the default, that it is told from a batch that was given, and which names are networks of tokens."""
    assert lower("gpt2_tiny").attributes["batch"] == 4
    assert lower("gpt2_tiny", batch=64, phase="forward").attributes["batch"] == 64
    assert lower("lenet5", phase="forward").attributes["batch"] == 64
    assert {"gpt2", "gpt2_tiny", "gpt2_small", "mobilebert", "mobilebert_tiny"} < {*network_names("tokens")}
    assert {*network_names()} == {*network_names("tokens"), *network_names("images")}
