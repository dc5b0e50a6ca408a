"""Where a plan may be bound to."""

import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.lowering import lower
from forktask.cython_src.targets import TARGETS, bind


def test_bad_targets_are_refused():
    """Check an unknown target, and an instruction set for a GPU."""
    with pytest.raises(UsageError, match="target.*'tpu'"):
        bind(task_bench("trivial", 2, 2), target="tpu")
    with pytest.raises(UsageError, match="'avx2' for 'gpu'"):
        bind(task_bench("trivial", 2, 2), target="gpu", instruction_set="avx2")


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "gpu"])
def test_targets_on_this_processor_share_memory(target):
    """Check that each gives a bound plan of that target on the caller's storage; tests/gpu has the GPU."""
    plan = lower("lenet5", batch=2)
    first = bind(plan, target=target)
    second = bind(plan, first.storage, target)
    assert first.target == second.target == target
    for name, buffer in plan.buffers.items():
        assert (first.arrays[name] is second.arrays[name]) == buffer.persistent, name
