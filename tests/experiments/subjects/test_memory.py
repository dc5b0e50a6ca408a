"""Planned and measured memory."""

import itertools
import json
import re

import numpy as np
import pytest
from cython_src.networks_for_tests import SMALL, fill
from kinds import forms_of_models, threads_of
from programs import run_python

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.commands.main import main
from forktask.experiments.machine.disturbance import resident_bytes
from forktask.experiments.subjects import memory as planned
from forktask.experiments.subjects.memory import (
    check_fits,
    format_bytes,
    least_bytes,
    parse_bytes,
    planned_bytes,
    what_fits,
)
from forktask.experiments.subjects.models import make_executor
from forktask.experiments.sweep import expected

MIB = 2**20


@pytest.mark.parametrize("model", forms_of_models(has=lambda model: not model.is_reference))
def test_a_thousand_steps_take_no_memory(model):
    """Check that resident memory after 1000 further steps is what it was after the first 50."""
    bound = bind(lower(SMALL["resnet18"], batch=2, num_images=2))
    fill(bound, rate=1e-4)
    with make_executor(model, threads_of(model, 2)) as executor:
        executor.prepare(bound)
        executor.run(50)
        before = resident_bytes()
        for k in range(4):
            executor.run(250, first_iteration=50 + 250 * k)
        assert resident_bytes() - before <= MIB // 4
    assert np.isfinite(bound.arrays["losses"]).all()


def test_planned_bytes_are_those_of_the_arrays():
    """Check the sum over kinds against the arrays that a bound plan holds."""
    plan = lower(SMALL["mobilenet_v2"], batch=4, num_images=4, optimizer="adam")
    planned = planned_bytes(plan, 2)
    held = sum(array.nbytes for array in bind(plan).arrays.values()) + 2 * bind(plan).scratch_bytes
    assert sum(size for kind, size in planned.items() if kind not in ("libraries", "plan and graph")) == held
    weights = 4 * (
        SMALL["mobilenet_v2"].num_parameters + sum(n for (n,) in SMALL["mobilenet_v2"].statistic_shapes().values())
    )
    assert planned["weights"] == weights
    assert planned["optimiser"] == 8 * SMALL["mobilenet_v2"].num_parameters


def test_what_does_not_fit_is_refused_with_what_would():
    """Check the sentence, and that its advice holds."""
    options = {"network": "cifar10_cnn", "batch": 512}
    plan = lower(**options)

    def needed_bytes(plan):
        return sum(planned_bytes(plan, 1).values())

    limit = int(0.6 * needed_bytes(plan))
    with pytest.raises(MemoryError, match=r"the plan needs .* the memory limit is .* would fit"):
        check_fits(plan, options, limit, None)
    advice = what_fits(options, limit, needed_bytes)
    batch = int(advice.split("batch ")[1].split()[0])
    assert needed_bytes(lower("cifar10_cnn", batch=batch)) <= limit
    assert what_fits(options, MIB, needed_bytes) == "no smaller batch fits either"
    check_fits(plan, options, 2 * needed_bytes(plan), None)


@pytest.mark.parametrize("name", [*SMALL, "gpt2_tiny", "mobilebert_tiny", "mobilebert_tiny_classifier"])
def test_no_plan_needs_less_than_its_layers_tell(name):
    """Check the bound against plans of all phases, with buffers of their own or shared, joined layers or none."""
    network = SMALL.get(name) or get_network(name)
    for phase, fusion, memory in itertools.product(("train", "forward"), ("all", "none"), ("full", "shared")):
        for recompute in {False, memory == "shared" and phase == "train"}:
            options = PlanOptions(batch=3, phase=phase, fusion=fusion, memory=memory, recompute=recompute)
            alone, sample = least_bytes(network, options)
            assert sample > 0 and alone + 3 * sample <= sum(planned_bytes(lower(network, options), 1).values())


def test_what_cannot_fit_is_refused_before_it_is_lowered(monkeypatch, capsys, tmp_path):
    """Check the sentence, that it names the largest batch of the bound, and that nothing was lowered."""
    for module in (planned, expected):
        monkeypatch.setattr(module, "lower", lambda **_: pytest.fail("lowered"))
    assert main(["plan", "--network", "gpt2_small", "--batch", "65536", "--memory-limit", "1GiB", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["plans"]
    text = r"needs at least .*, the memory limit is 1 GiB; no batch above (\d+) fits"
    batch = int(re.search(text, row["failure"])[1])
    alone, sample = least_bytes(get_network("gpt2_small"), PlanOptions(batch=1))
    assert alone + batch * sample <= 2**30 < alone + (batch + 1) * sample
    assert main(["plan", "--network", "gpt2_small", "--batch", "65536", "--memory-limit", "1GiB"]) == 0
    assert "batch 65536: did not fit: the plan needs at least" in capsys.readouterr().out
    file = tmp_path / "large.toml"
    file.write_text("[grid]\nnetwork = 'gpt2_small'\nbatch = 65536\n[measure]\nmemory_limit = '1GiB'\n")
    assert main(["run", str(file), "--dry-run"]) == 2
    assert "batch 65536: the plan needs at least" in capsys.readouterr().err


def test_sizes_are_read_and_written():
    """Check units of a limit, and that bad ones are refused."""
    assert [parse_bytes(t) for t in ("1500000000", "1.5G", "1.5GiB", "12kb")] == [
        1_500_000_000,
        1_500_000_000,
        3 * 2**29,
        12_000,
    ]
    for text in ("", "much", "-3G", "1.5X"):
        with pytest.raises(UsageError, match="memory limit"):
            parse_bytes(text)
    assert format_bytes(3 * 2**29) == "1.5 GiB"


def test_command_keeps_rows_that_do_not_fit(capsys):
    """Check a sweep over the batch in which one row fits and one does not."""
    command = "plan --network cifar10_cnn --batch 16,4096 --memory-limit 200MiB --model forkjoin --json"
    assert main(command.split()) == 0
    fits, too_large = json.loads(capsys.readouterr().out)["plans"]
    assert "would fit" in too_large["failure"] and "failure" not in fits
    assert too_large["phases"] and too_large["planned"]


def test_the_peak_of_preparing_is_what_was_planned():
    """Check the peak of a process that prepares shared buffers, whose blocks use many cells, against the plan."""
    program = """
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.experiments.machine.disturbance import peak_resident_bytes
from forktask.experiments.subjects.memory import planned_bytes
from forktask.experiments.subjects.models import make_executor
with make_executor("taskiter", 1) as executor:
    libraries = peak_resident_bytes()
    bound = bind(lower("gpt2_small", batch=4, sequence=64, memory="shared", recompute=True))
    initialise(bound)
    executor.prepare(bound)
    planned = planned_bytes(bound.plan, 1)
    print(peak_resident_bytes() - libraries, sum(planned.values()) - planned["libraries"])
"""
    peak, planned = map(int, run_python(program, check=True).stdout.split())
    assert peak == pytest.approx(planned, rel=0.1)


def test_a_plan_is_described(capsys):
    """Check loops, tasks and operations by phase, and the bytes by purpose, against the plan; both outputs."""
    command = ["plan", "--network", "lenet5", "--batch", "2"]
    assert main([*command, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["plans"]
    plan = lower("lenet5", batch=2)
    phases = {result["phase"]: result for result in row["phases"]}
    assert {*phases} == {loop.phase for loop in plan.loops}
    for name, total in (("loops", len(plan.loops)), ("tasks", plan.num_tasks), ("flops", plan.flops)):
        assert sum(result[name] for result in phases.values()) == pytest.approx(total)
    assert row["planned"] == planned_bytes(plan, 1)
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {*phases, *row["planned"]} <= {line.partition("  ")[0] for line in lines}


def test_peak_memory_is_that_of_the_process_alone():
    """Check that a small process that a large one starts has a small peak, and that a large array raises it."""
    program = "from forktask.experiments.machine.disturbance import peak_resident_bytes as p; import numpy as np; "
    program += "a = p(); b = np.ones(10**7); print(a, p())"
    held = np.ones(5 * 10**7)
    before, after = map(int, run_python(program, check=True).stdout.split())
    assert 10e6 < before < held.nbytes / 2 and 70e6 < after - before < 120e6
