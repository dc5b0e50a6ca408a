"""The verdict of `forktask info` on made-up records, and the command itself."""

import copy
import json

import pytest

from forktask.cython_src.kernels.simd import instruction_sets
from forktask.experiments.commands import main as cli
from forktask.experiments.machine import fitness, machine_peaks
from forktask.experiments.machine.disturbance import Disturbance
from forktask.experiments.machine.environment import collect, environment_id, read_variables
from forktask.experiments.machine.info import machine_topics


def make_environment(**changes):
    """Record of a quiet machine with two cores, otherwise hidden; changes by path, with `__` for the dot."""
    cpus = [{"cpu": c, "socket": 0, "node": 0, "core": c, "siblings": [c], "kind": 0, "capacity": None} for c in (0, 1)]
    counts = {"cores": 2, "sockets": 1, "nodes": 1, "threads_per_core": 1}
    environment = collect("/nowhere", {}) | {
        "topology": {"known": True, "online": [0, 1], "cpus": cpus, **counts},
        "caches": [{"level": 2, "type": "Unified", "size_bytes": 1 << 20, "line_bytes": 64, "shared_by": [0]}],
        "affinity": [0, 1],
        "last_level_cache_bytes": 1 << 20,
        "core_kinds": [{"kind": 0, "cpus": [0, 1], "text": "2 CPUs of kind 1 (0-1)"}],
        "clock": {"source": "tsc", "cost_ns": 20.0, "step_ns": 1.0},
        "libraries": [],
        "load_average": [0.1, 0.1, 0.1],
        "pressure_some_percent": 0.0,
    }
    environment["build"] |= {"optimization": "3", "sanitize": "none"}
    return apply(environment, changes)


def make_machine(**changes):
    """Measured row of that machine."""
    return apply(
        {
            "kind": "machine",
            "instruction_set": "avx2",
            "peak_flops_per_s_1thread": 100e9,
            "median_flops_per_s_1thread": 99e9,
            "frequency_hz": 3e9,
            "flops_per_cycle": 32.0,
            "additions_per_cycle": {"0": 4.9, "1": 2.6},
            "bandwidth_bytes_per_s": {"1": 20e9, "2": 30e9},
            "cache_bandwidth_bytes_per_s": {"2": 90e9},
            "between_nodes": {"0": {"0": 12e9}},
            "capacity": {"1": 1.0, "2": 1.98},
            "elapsed_s": 1.0,
            "disturbance": dict.fromkeys(Disturbance.FIELDS, 0),
        },
        changes,
    )


def apply(record, changes):
    for path, value in changes.items():
        *folders, name = path.split("__")
        target = record
        for folder in folders:
            target = target[folder]
        target[name] = value
    return record


def smt_cpus():
    """Two logical CPUs of one core."""
    return [{"cpu": c, "socket": 0, "node": 0, "core": 0, "siblings": [0, 1], "kind": 0} for c in (0, 1)]


def test_a_quiet_machine_is_fit():
    """Check that nothing is complained about without cause."""
    assert fitness.verdict(make_environment(), make_machine()) == {"level": "fit", "reasons": []}


FAST_AND_SLOW = {
    "topology__cpus": [{"cpu": c, "core": c, "kind": 1 - c} for c in (0, 1)],
    "core_kinds": [{"kind": 1 - c, "cpus": [c], "text": f"kind {c}"} for c in (1, 0)],
}
TWO_RUNTIMES = [{"kind": "openmp", "file": f} for f in ("libgomp.so.1", "libomp.so")]
RESERVED, UNFIT = fitness.RESERVED, fitness.UNFIT
# Changes of the environment and of the measured row, the level, and what the reason or its remedy names.
CASES = {
    "quota": ({"quota_cpus": 1.5}, {}, UNFIT, "at most 1 thread"),
    "quota below one": ({"quota_cpus": 0.5}, {}, UNFIT, "0.5 CPUs"),
    "one cpu": ({"affinity": [0]}, {}, RESERVED, "taskset"),
    "hidden siblings": ({}, {"capacity": {"1": 1.0, "2": 1.2}}, UNFIT, "1.20 times"),
    "falling frequency": ({}, {"capacity": {"1": 1.0, "2": 1.7}}, RESERVED, "1.70 times"),
    "SMT": ({"topology__cpus": smt_cpus()}, {"capacity": {"1": 1.0, "2": 1.05}}, RESERVED, "up to 1 thread;"),
    "unequal cores": (FAST_AND_SLOW, {}, RESERVED, "threads get kind 1, then kind 0"),
    "little memory": (
        {"memory__available_bytes": 300 << 20, "last_level_cache_bytes": 480 << 20},
        {},
        RESERVED,
        "raise the memory limit",
    ),
    "hidden topology": ({"topology__known": False}, {}, RESERVED, "/sys"),
    "wavering": ({}, {"median_flops_per_s_1thread": 60e9}, RESERVED, "60 of 100"),
    "some pressure": ({"pressure_some_percent": 9.0}, {}, RESERVED, "9 %"),
    "high pressure": ({"pressure_some_percent": 60.0}, {}, UNFIT, "60 %"),
    "load": ({"load_average": [1.9, 1, 1]}, {}, RESERVED, "1.9"),
    "steal": ({}, {"disturbance__steal_ticks": 50}, UNFIT, "hypervisor"),
    "throttled": ({}, {"disturbance__throttled_us": 9000}, UNFIT, "9 ms"),
    "hot": ({"board__throttled": True}, {}, UNFIT, "heat"),
    "hot meanwhile": ({}, {"disturbance__thermal_throttles": 2}, UNFIT, "heat"),
    "coarse clock": ({"clock__step_ns": 4e6}, {}, UNFIT, "4000 µs"),
    "dear clock": ({"clock__source": "hpet", "clock__cost_ns": 900.0}, {}, RESERVED, "hpet"),
    "debug build": ({"build__optimization": "0"}, {}, UNFIT, "optimization 0"),
    **{
        name: ({"variables": read_variables({name: value})}, {}, RESERVED, f"unset {name}")
        for name, value in (
            ("OPENBLAS_CORETYPE", "Haswell"),
            ("OMP_THREAD_LIMIT", "1"),
            ("OMP_MAX_ACTIVE_LEVELS", "0"),
            ("OMP_PROC_BIND", "true"),
        )
    },
    "two runtimes": ({"libraries": TWO_RUNTIMES}, {}, RESERVED, "libgomp.so.1, libomp.so"),
    "governor": ({"frequency__governor": "powersave"}, {}, RESERVED, "powersave"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_reason_has_its_level_and_remedy(case):
    """Check one cause at a time."""
    environment, machine, level, named = copy.deepcopy(CASES[case])
    judgement = fitness.verdict(make_environment(**environment), make_machine(**machine))
    assert judgement["level"] == level
    result = judgement["reasons"][0]
    assert result["remedy"] and named in f"{result['reason']}; {result['remedy']}"


def test_the_worst_reason_decides_and_comes_first():
    """Check that reasons are sorted by weight."""
    judgement = fitness.verdict(make_environment(frequency__governor="powersave", quota_cpus=1.0), make_machine())
    assert [r["level"] for r in judgement["reasons"]] == ["not fit", "fit with reservations"]
    assert judgement["level"] == "not fit"
    text = fitness.verdict_text(judgement)
    assert text.startswith("this machine is not fit for measuring: the container") and text.endswith(
        "(1 reason more: forktask info)"
    )


def test_the_command_prints_json_and_a_page(capsys):
    """Check both forms of the command on this machine, whatever its verdict."""
    assert cli.main(["info", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"]["level"] in fitness.LEVELS
    assert record["environment_id"] == environment_id(record["environment"])
    assert record["machine"]["capacity"]
    assert all(rate > 0 for rate in record["machine"]["additions_per_cycle"].values())
    record["machine"]["additions_per_cycle"] = {"0": 4.9, "1": 2.6}
    record["environment"]["cpu"]["virtual_machine"] = True
    shown = "integer additions per cycle: 4.9 on CPU 0 (whole core), 2.6 on CPU 1 (half a core)"
    assert machine_topics(record)["Issue"] == shown
    strict = cli.main(["info", "--strict"])
    page = capsys.readouterr().out
    assert strict == (1 if "Verdict: not fit" in page else 0)
    assert "openblas" in page or "mkl" in page or "no OpenMP or BLAS" in page or "blas" in page.lower()


def test_limits_are_measured_under_each_instruction_set(monkeypatch):
    """Check that each name of `available` has a kernel of the measurements."""
    for name in instruction_sets.available():
        monkeypatch.setenv(instruction_sets.ENVIRONMENT_VARIABLE, name)
        assert machine_peaks.measure_memory(1, 0.001, 1 << 16) > 0
