"""What differs between models besides who runs a block and when: each executor's record against what it does."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from kinds import KINDS, forms_of_models

from forktask.experiments.subjects.models import parse_model, process_environment

pytestmark = pytest.mark.timeout(120)
PROBE = Path(__file__).with_name("conduct_probe.py")
SPECS = forms_of_models("region", "placement")


@cache
def observe(spec, runtime=""):
    """What a fresh process sees of a model; idle threads sleep, so that switches count. `runtime`: a model whose OpenMP
    library is preloaded."""
    preload = process_environment(parse_model(runtime or spec))
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1", **preload}
    done = subprocess.run(
        [sys.executable, "-P", PROBE, spec], capture_output=True, text=True, timeout=100, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.two_cpus
@pytest.mark.parametrize("spec", SPECS)
def test_the_record_says_which_threads_run_blocks(spec):
    """Check the caller's part, no more than num_threads others, and when those start."""
    result = observe(spec)
    conduct, caller = result["conduct"], result["caller"]
    runs = [{block["thread"] for block in result[run]} for run in ("first_run", "second_run")]
    assert conduct["caller_executes"] == (caller in runs[0])
    assert all(len(threads) <= len(result["cpus"]) for threads in runs)
    made, prepared, ran = (b > a for a, b in zip(result["num_threads"], result["num_threads"][1:], strict=False))
    if conduct["threads_start"] == "each run":
        assert not made and not prepared and not runs[0] & runs[1]
    else:
        starts = {
            (False,) * 3: "never",
            (True, False, False): "executor",
            (False, True, False): "prepare",
            (False, False, True): "first run",
        }
        assert starts[made, prepared, ran] == conduct["threads_start"]


@pytest.mark.two_cpus
@pytest.mark.parametrize("spec", SPECS)
def test_every_thread_runs_blocks_alike(spec):
    """Check the CPU and the floating-point mode of each thread in a block, and the caller's affinity afterwards."""
    result = observe(spec)
    for block in result["first_run"] + result["second_run"]:
        assert block["flushes"]
        assert block["cpus"] in [[cpu] for cpu in result["cpus"]]
        if block["thread"] != result["caller"]:
            assert block["blocks_sigint"] == result["conduct"]["blocks_signals"]
    assert result["caller_affinity"] == result["allowed"]
    others = [cpus for thread, cpus in result["affinity_after"].items() if int(thread) != result["caller"]]
    if result["conduct"]["pinned"] == "at start":
        assert sorted(others) == [[cpu] for cpu in result["cpus"]]
    elif result["conduct"]["idle_runtime"] == "libgomp":
        assert all(cpus == result["allowed"] for cpus in others)


@pytest.mark.two_cpus
@pytest.mark.libomp
@pytest.mark.parametrize("spec", forms_of_models("region", has=lambda model: "runtime" in model.fields))
def test_blocks_run_alike_on_llvms_runtime(spec):
    """Check the floating-point mode where the OpenMP library sets one for each region, and the name in the record."""
    result = observe(f"{spec}:runtime=libomp")
    assert all(block["flushes"] for block in result["first_run"] + result["second_run"])
    assert result["conduct"]["idle_runtime"] == result["openmp"] == "libomp"


@pytest.mark.two_cpus
@pytest.mark.parametrize("spec", SPECS)
def test_the_record_says_how_threads_wait(spec):
    """Check the runtime, wake-ups of a waiting caller and of a thread without work, and membarrier."""
    result = observe(spec)
    conduct = result["conduct"]
    if conduct["idle_runtime"] in ("libgomp", "libomp"):
        assert result["openmp"] == conduct["idle_runtime"]
    assert result["membarrier"] == conduct["membarrier"]
    assert conduct["wait_policy"] == ("passive" if conduct["idle_runtime"] in ("libgomp", "libomp", "forktask") else "")
    if conduct["idle_runtime"] == "forktask":
        expected = 1e9 / conduct["caller_wakes_ns"]
        assert 0.3 * expected < result["caller_switches_per_s"] < 3 * expected
        assert conduct["naps"] == (result["sleeper_switches_per_s"] > 80)


@pytest.mark.two_cpus
def test_the_record_has_the_version_of_the_library():
    """Check that each library that was built says one, and our own models none."""
    versions = {spec: observe(spec)["conduct"]["release"] for spec in SPECS}
    for spec, version in versions.items():
        assert re.fullmatch(r"(\d+(\.\d+)+)?" if parse_model(spec).model.is_reference else "", version), spec
    assert all(versions[name] for name in KINDS if name in versions)
