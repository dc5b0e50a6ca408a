"""Replay is refused when a bound plan's memory was exchanged, by every executor alike."""

import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.experiments.sampling.models import built_models, make_executor


@pytest.mark.parametrize("model", [*built_models(), "taskiter:unroll=2", "taskiter:placement=stealing"])
def test_exchanged_arrays_are_refused(model):
    """Check another array of the same name, in the plan or its storage; another shape; the former array again."""
    bound = bind(lower("cifar10_cnn", batch=8))
    name = bound.plan.attributes["parameters"][0]
    array = bound.arrays[name]
    with make_executor(model, 1 if model == "serial" else 2) as executor:
        executor.prepare(bound)
        executor.run(2)
        for arrays in (bound.arrays, bound.storage.arrays):
            arrays[name] = array.copy()
            with pytest.raises(UsageError, match=f"may not be exchanged, but {name!r} was"):
                executor.run(2, 2)
            arrays[name] = array
            executor.run(2, 2)
        shape = array.shape
        array.shape = (*shape, 1)
        with pytest.raises(UsageError, match="may not change their shape"):
            executor.run(2, 4)
        array.shape = shape
        executor.run(2, 4)
