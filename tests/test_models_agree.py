"""Every execution model computes the same bits."""

import numpy as np
import pytest
from kinds import LONG, forms_of_models

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.kernels.simd.instruction_sets import available
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks import gpt2
from forktask.experiments.machine.topology import available_cpus, cpu_order
from forktask.experiments.subjects.models import make_executor
from forktask.experiments.subjects.subject import fill_dataset, result_hashes

STEPS = 20
THREADS = range(1, 9) if LONG else (1, 2, 3, 4, 8)
SPECS = forms_of_models("region", "taskwait", "placement", has=lambda m: m.max_threads != 1 and not m.far_behind)
PLANS = {
    "partial, 20 images": {"batch": 20},
    "chain, 20 images": {"batch": 20, "weight_gradients": "chain"},
    "one image by rows": {"batch": 1, "granularity": "channels=4,rows=8"},
    "not fused, shared memory": {"batch": 20, "fusion": "none", "memory": "shared"},
}


MANY = (16, 64, 256, 512) if LONG else (16,)
MOST_OF_TBB = 256  # threads that oneTBB starts on a small machine, and says so where there are more
LAST = max(available_cpus())
PLACEMENTS = {
    "cores": {},
    "threads, spread": {"places": "threads", "bind": "spread"},
    "nodes": {"places": "numa"},
    "one CPU": {"places": str(LAST)},
    "not pinned": None,
}


def hashes_after_steps(plan, spec, threads, chunks=(STEPS,), cpus=None, instruction_set=None):
    """Hashes of weights and losses after all steps from the same start."""
    bound = bind(plan, instruction_set=instruction_set)
    fill_dataset(bound, seed=3)
    initialise(bound, seed=5)
    before = result_hashes(bound)["weights_hash"]
    with make_executor(spec, threads, cpus=cpus) as executor:
        executor.prepare(bound)
        done = 0
        for count in chunks:
            executor.run(count, done)
            done += count
    hashes = result_hashes(bound)
    assert hashes["finite"] and hashes["weights_hash"] != before
    assert np.count_nonzero(bound.arrays["losses"][: sum(chunks)]) == sum(chunks)
    return hashes


@pytest.fixture(scope="module", params=list(PLANS))
def plan_and_hashes(request):
    """A plan and what the serial executor makes of it."""
    options = PLANS[request.param]
    plan = lower("cifar10_cnn", num_images=2 * options["batch"], num_batches=2, **options)
    return plan, hashes_after_steps(plan, "serial", 1)


@pytest.mark.parametrize("spec", SPECS)
def test_models_equal_serial_on_one_to_eight_threads(plan_and_hashes, spec):
    """Check weights and losses after 20 steps, bit for bit."""
    plan, expected = plan_and_hashes
    for threads in THREADS:
        assert hashes_after_steps(plan, spec, threads) == expected, f"{threads} threads"


def test_joblib_equals_serial():
    """Check weights and losses after 20 steps, bit for bit; joblib hands out blocks too slowly for more."""
    plan = lower("cifar10_cnn", batch=20, num_images=40, num_batches=2)
    expected = hashes_after_steps(plan, "serial", 1)
    for threads in (1, 3):
        assert hashes_after_steps(plan, "joblib", threads) == expected, f"{threads} threads"


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_many_threads_on_few_cpus_leave_the_same_bits(spec, placement):
    """Check weights and losses after 4 steps of 16 threads, in long tests of up to 512, by each kind of placement."""
    plan = lower("cifar10_cnn", batch=20, num_images=40, num_batches=2, num_iterations_logged=4)
    expected = hashes_after_steps(plan, "serial", 1, (4,))
    how = PLACEMENTS[placement]
    for threads in MANY:
        if spec == "tbb" and threads > MOST_OF_TBB:
            continue
        cpus = None if how is None else cpu_order(threads, **how, oversubscribe=True)
        assert hashes_after_steps(plan, spec, threads, (1, 3), cpus) == expected, f"{threads} threads"


def test_six_products_leave_the_same_bits_in_all_models():
    """Check `products=bf16x6` in a network of tokens: weights and losses of models and threads, on AMX where it is
    there, against the serial run, and against the form for any processor."""
    network = gpt2.network("six", num_layers=1, features=256, heads=4, vocabulary=300, positions=8)
    plan = lower(network, batch=3, sequence=8, products="bf16x6")
    expected = hashes_after_steps(plan, "serial", 1, chunks=(3,))
    assert expected != hashes_after_steps(lower(network, batch=3, sequence=8), "serial", 1, chunks=(3,))
    for spec in SPECS:
        for threads in (1, 2, 4):
            assert hashes_after_steps(plan, spec, threads, chunks=(3,)) == expected, (spec, threads)
    if "avx512_narrow" in available():
        assert hashes_after_steps(plan, "serial", 1, chunks=(3,), instruction_set="avx512_narrow") == expected
