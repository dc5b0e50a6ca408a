"""OpenMP variables of the environment do not take CPUs away from the process."""

import errno
import os
import shutil
import subprocess

import pytest
from programs import run_forktask, run_python

from forktask.cython_src.affinity import start_remedy

CPUS = sorted(os.sched_getaffinity(0))
PROGRAM = """if True:
    import importlib, os, sys, threading
    masks = lambda: sorted(os.sched_getaffinity(0))
    loaded_before = [importlib.import_module(name) for name in sys.argv[1:]]
    import forktask as ft
    from forktask.experiments.machine.topology import available_cpus, cpu_order
    from forktask.experiments.subjects.models import built_models
    built_models()  # loads the modules that use OpenMP
    runner = ft.executor("taskiter", threads=2)
    inherited = []
    thread = threading.Thread(target=lambda: inherited.append(masks()))
    thread.start()
    thread.join()
    print(available_cpus(), masks(), *inherited, sep="; ")
    cpu_order(len(available_cpus()) + 1)
"""


def run(variables, *modules):
    """Run the program beside some variables, after some modules; return its result and its last words."""
    done = run_python(PROGRAM, *modules, variables=variables)
    return done.stdout.strip(), done.stderr.strip().splitlines()[-1]


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
@pytest.mark.parametrize(
    "variables",
    [
        {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
        {"OMP_PROC_BIND": "true"},
        {"OMP_PLACES": "threads"},
        {"OMP_PLACES": f"{{{CPUS[-1]}}}"},
        {"GOMP_CPU_AFFINITY": str(CPUS[0])},
        {"KMP_AFFINITY": "compact"},
    ],
)
def test_the_process_keeps_its_cpus(variables):
    """Check mask and threads after OpenMP was loaded, and that the refusal of too many threads names the variables."""
    result, sentence = run(variables)
    assert result == f"{CPUS}; {CPUS}; {CPUS}"
    assert all(f"unset {name}={value}" in sentence for name, value in variables.items())


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_a_mask_that_the_user_chose_stays():
    """Check that a process started on one CPU stays there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CPUS[-1:])
    try:
        assert run({"OMP_PROC_BIND": "close"})[0] == "; ".join([f"[{CPUS[-1]}]"] * 3)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
@pytest.mark.torch
def test_a_package_that_pins_first_is_undone():
    """Check a process whose thread another package's libgomp had pinned before forktask was imported; where places are
    fewer than the CPUs, the sentence names the variable."""
    assert run({"OMP_PROC_BIND": "close", "OMP_PLACES": "threads"}, "torch")[0] == f"{CPUS}; {CPUS}; {CPUS}"
    assert (
        "the 1 CPU this process may use, got 2; ask for fewer, unset GOMP_CPU_AFFINITY"
        in (run({"GOMP_CPU_AFFINITY": str(CPUS[0])}, "torch")[1])
    )


@pytest.fixture
def refusing(tmp_path):
    """Environment of a process in which the system refuses to pin threads, as sandboxes do."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source = (
        "#include <errno.h>\nint sched_setaffinity(int p, long n, const void *s) { errno = EPERM; return -1; }\n"
        "int pthread_setaffinity_np(long t, long n, const void *s) { return EPERM; }\n"
    )
    command = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(tmp_path / "refuse.so")]
    subprocess.run(command, input=source, text=True, check=True)
    return {"LD_PRELOAD": str(tmp_path / "refuse.so")}


def test_a_system_that_forbids_pinning_is_named(refusing, tmp_path):
    """Check that threads that are not pinned are measured, and what is said of those that should be."""
    command = ["compare", "--network", "lenet5", "--threads", "1", "--quick", "--models", "forkjoin,taskiter"]
    for words, code in ((["--bind", "none"], 0), ([], 2)):
        done = run_forktask(*command, *words, variables=refusing, cwd=tmp_path)
        assert done.returncode == code, done.stderr
    assert "must let threads be pinned" in done.stderr and "pass --bind none" in done.stderr
    assert "leave the sandbox" in start_remedy(errno.EPERM) and "pids.max" in start_remedy(errno.EAGAIN)
