"""What StarPU asks for beyond the other outside runtimes."""

import threading

import pytest
from programs import run_python

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.subjects.models import make_executor

pytestmark = pytest.mark.starpu

TRAINERS = """
from forktask.experiments.training.config import TrainingConfig
from forktask.experiments.training.data import load_data
from forktask.experiments.training.trainer import Trainer

config = TrainingConfig(data="synthetic:64", model="starpu", threads=2, epochs=1, batch=16)
for _ in range(3):
    with Trainer(config, load_data(config.data), 0) as trainer:
        trainer.train_epoch()
"""


def test_tasks_made_once_need_no_wait_between_loops():
    """Check that waits are refused where there is none, and the remedy."""
    with pytest.raises(UsageError, match="taskwait must be none with construct=tags.*got loop; use construct=tasks"):
        make_executor("starpu:construct=tags:taskwait=loop", 2)


def test_executors_share_it_if_their_settings_agree():
    """Check two executors at once; a third with other settings is refused meanwhile, and comes after them."""
    bounds = [bind(task_bench("stencil_1d", 4, 4, kernel="compute", work=10)) for _ in range(3)]
    with make_executor("starpu", 2) as first, make_executor("starpu:taskwait=loop", 2) as second:
        first.prepare(bounds[0])
        second.prepare(bounds[1])
        with make_executor("starpu:scheduler=eager", 2) as third, pytest.raises(RuntimeError, match="scheduler"):
            third.prepare(bounds[2])
        threads = [threading.Thread(target=executor.run, args=(300,)) for executor in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with make_executor("starpu:scheduler=eager", 1) as third:
        third.prepare(bounds[2])
        third.run(300)
    for bound in bounds:
        assert bound.arrays["cells"][0, 0, 0] == 300


def test_starpu_ends_after_executors_have_freed_their_memory():
    """Check that StarPU, which ends with the last executor, reads nothing that others had: glibc overwrites it here."""
    done = run_python(TRAINERS, variables={"MALLOC_PERTURB_": "165"}, timeout=120)
    assert done.returncode == 0, done.stderr
