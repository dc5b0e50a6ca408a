"""The environment record, on made-up /proc and /sys trees; nothing here depends on the speed of this machine."""

import json
import os
import subprocess
import sys

import pytest

from forktask.cython_src.errors import MachineError, UsageError
from forktask.cython_src.kernels.simd import instruction_sets
from forktask.experiments.machine import machine_peaks
from forktask.experiments.machine.disturbance import Disturbance, read_quota
from forktask.experiments.machine.environment import collect, environment_id
from forktask.experiments.machine.limits import measure_machine
from forktask.experiments.machine.topology import (
    available_cpus,
    core_counts,
    cpu_order,
    format_cpu_list,
    last_level_cache_bytes,
    parse_cpu_list,
    read_caches,
    read_topology,
)
from forktask.experiments.machine.variables import read_variables


def write_tree(root, files):
    """Create files below `root` from {path: text}."""
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def topology_files(cores, *, capacity=None):
    """Files for a machine given as {cpu: (socket, node, siblings)}."""
    files = {"sys/devices/system/cpu/online": format_cpu_list(cores) + "\n"}
    nodes = {}
    for cpu, (socket, node, siblings) in cores.items():
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/physical_package_id"] = f"{socket}\n"
        files[f"{folder}/topology/core_cpus_list"] = f"{siblings}\n"
        if capacity:
            files[f"{folder}/cpu_capacity"] = f"{capacity[cpu]}\n"
        nodes.setdefault(node, []).append(cpu)
    for node, cpus in nodes.items():
        files[f"sys/devices/system/node/node{node}/cpulist"] = format_cpu_list(cpus)
    return files


# Two sockets x two cores x two threads, numbered as Linux usually does: siblings differ by four.
TWO_SOCKETS = {
    0: (0, 0, "0,4"),
    1: (0, 0, "1,5"),
    2: (1, 1, "2,6"),
    3: (1, 1, "3,7"),
    4: (0, 0, "0,4"),
    5: (0, 0, "1,5"),
    6: (1, 1, "2,6"),
    7: (1, 1, "3,7"),
}


@pytest.fixture
def two_sockets(tmp_path):
    return write_tree(tmp_path, topology_files(TWO_SOCKETS))


@pytest.mark.parametrize("text, cpus", [("0", [0]), ("0-2,5", [0, 1, 2, 5]), ("", []), ("3,8-9", [3, 8, 9])])
def test_cpu_lists_are_read_and_written(text, cpus):
    """Check that the kernel's list format is understood in both directions."""
    assert parse_cpu_list(text) == cpus
    assert format_cpu_list(cpus) == text


def test_order_is_cores_then_siblings_then_next_socket(two_sockets):
    """Check the placement order on two sockets x two cores x SMT."""
    order = cpu_order(8, range(8), root=two_sockets)
    assert order == [0, 1, 4, 5, 2, 3, 6, 7]
    for n in range(1, 8):
        assert cpu_order(n, range(8), root=two_sockets) == order[:n]


def test_order_keeps_to_the_cpus_allowed(two_sockets):
    """Check that a sibling counts as a core of its own when its partner may not be used."""
    assert cpu_order(3, [4, 5, 1], root=two_sockets) == [4, 1, 5]
    assert cpu_order(2, [7, 6], root=two_sockets) == [6, 7]


def test_order_with_adjacent_siblings(tmp_path):
    """Check the numbering in which siblings are neighbours."""
    root = write_tree(tmp_path, topology_files({c: (0, 0, f"{c // 2 * 2}-{c // 2 * 2 + 1}") for c in range(6)}))
    assert cpu_order(6, range(6), root=root) == [0, 2, 4, 1, 3, 5]


def test_faster_cores_come_first(tmp_path):
    """Check that cores of higher capacity get workers before slower ones."""
    cores = {c: (0, 0, str(c)) for c in range(4)}
    root = write_tree(tmp_path, topology_files(cores, capacity={0: 400, 1: 400, 2: 1024, 3: 1024}))
    assert cpu_order(4, range(4), root=root) == [2, 3, 0, 1]


def test_numa_nodes_of_a_socket_are_filled_one_after_the_other(tmp_path):
    """Check that interleaved numbering does not scatter workers over the nodes of one socket."""
    root = write_tree(tmp_path, topology_files({c: (0, c % 2, str(c)) for c in range(4)}))
    assert cpu_order(4, range(4), root=root) == [0, 2, 1, 3]


def test_too_many_threads_is_a_usage_error(two_sockets):
    """Check that more workers than CPUs need a word from the user, and then start over."""
    with pytest.raises(UsageError, match=r"3.*--oversubscribe"):
        cpu_order(3, [0, 1], root=two_sockets)
    assert cpu_order(3, [0, 1], root=two_sockets, oversubscribe=True) == [0, 1, 0]
    with pytest.raises(UsageError, match="positive, got 0"):
        cpu_order(0, [0, 1], root=two_sockets)
    with pytest.raises(UsageError, match=r"online, got \[99\]"):
        cpu_order(1, [0, 99], root=two_sockets)


def test_topology_counts(two_sockets):
    """Check counts of cores, sockets, nodes and threads a core."""
    topology = read_topology(two_sockets)
    assert (topology["cores"], topology["sockets"], topology["nodes"]) == (4, 2, 2)
    assert topology["threads_per_core"] == 2
    assert topology["known"]


def test_hidden_topology_is_said(tmp_path):
    """Check that a /sys without topology is reported as unknown, one core a CPU."""
    root = write_tree(tmp_path, {"sys/devices/system/cpu/online": "0-1\n"})
    topology = read_topology(root)
    assert not topology["known"]
    assert topology["cores"] == 2


CGROUP_QUOTAS = {
    "v2, own group": ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, 1.5),
    "v2, parent is tighter": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
        },
        2.0,
    ),
    "v2, none": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    "v1": (
        {
            "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        0.5,
    ),
    "v1, none": (
        {
            "proc/self/cgroup": "1:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "v1 path with colons": (
        {
            "proc/self/cgroup": "1:cpu:/a:b\n",
            "sys/fs/cgroup/cpu/a:b/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/a:b/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    "no cgroups": ({}, None),
}


@pytest.mark.parametrize("case", CGROUP_QUOTAS)
def test_container_quota(tmp_path, case):
    """Check the CPU quota of both cgroup versions, at any level, seen from inside or outside a container."""
    files, expected = CGROUP_QUOTAS[case]
    assert read_quota(write_tree(tmp_path, files)) == expected


def disturbance_files(*, pressure, steal, throttled):
    return {
        "proc/self/cgroup": "0::/\n",
        "proc/pressure/cpu": f"some avg10=1.50 avg60=0.10 avg300=0.01 total={pressure}\n"
        f"full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "proc/stat": f"cpu  10 0 10 1000 5 0 1 {steal} 0 0\ncpu0 10 0 10 1000 5 0 1 {steal} 0 0\n",
        "sys/fs/cgroup/cpu.stat": f"usage_usec 5\nnr_throttled 2\nthrottled_usec {throttled}\n",
    }


def test_disturbance_is_the_difference_of_two_readings(tmp_path):
    """Check all four counters."""
    write_tree(tmp_path, disturbance_files(pressure=1000, steal=7, throttled=500))
    disturbance = Disturbance(tmp_path)
    before = disturbance.read()
    write_tree(tmp_path, disturbance_files(pressure=4000, steal=9, throttled=1700))
    added = disturbance.since(before)
    assert set(added) == set(Disturbance.FIELDS)
    assert (added["pressure_some_us"], added["steal_ticks"], added["throttled_us"]) == (3000, 2, 1200)
    assert added["nonvoluntary_switches"] >= 0


def test_throttled_time_of_cgroup_v1_is_in_nanoseconds(tmp_path):
    """Check the unit of the older file."""
    write_tree(tmp_path, {"proc/self/cgroup": "2:cpu:/\n", "sys/fs/cgroup/cpu/cpu.stat": "throttled_time 2500000\n"})
    assert Disturbance(tmp_path).read()["throttled_us"] == 2500


def test_hidden_counters_are_none(tmp_path):
    """Check that what the machine does not show is None and stays None in differences."""
    disturbance = Disturbance(tmp_path)
    added = disturbance.since(disturbance.read())
    assert added["pressure_some_us"] is added["steal_ticks"] is added["throttled_us"] is None


def test_crippling_variables_are_found():
    """Check that variables are told apart by what they do, and unrelated ones are left alone."""
    found = {
        v["name"]: v["kind"]
        for v in read_variables(
            {
                "OPENBLAS_CORETYPE": "Haswell",
                "OPENBLAS_L2_SIZE": "1",
                "OMP_NUM_THREADS": "3",
                "OMP_PROC_BIND": "true",
                "OMP_DYNAMIC": "false",
                "KMP_SOMETHING_NEW": "1",
                "HOME": "/",
                "COMP_LINE": "x",
            }
        )
    }
    assert found == {
        "OPENBLAS_CORETYPE": "cripples",
        "OPENBLAS_L2_SIZE": "cripples",
        "OMP_NUM_THREADS": "threads",
        "OMP_PROC_BIND": "placement",
        "OMP_DYNAMIC": "threads",
        "KMP_SOMETHING_NEW": "unknown",
    }
    assert read_variables({"OMP_DYNAMIC": "TRUE"})[0]["kind"] == "cripples"


def test_caches_and_their_total(tmp_path):
    """Check sizes, sharing, and the sum over several last-level caches."""
    folder = "sys/devices/system/cpu/cpu0/cache"
    root = write_tree(
        tmp_path,
        {
            f"{folder}/index0/level": "1",
            f"{folder}/index0/type": "Data",
            f"{folder}/index0/size": "48K",
            f"{folder}/index0/coherency_line_size": "64",
            f"{folder}/index0/shared_cpu_list": "0",
            f"{folder}/index1/level": "3",
            f"{folder}/index1/type": "Unified",
            f"{folder}/index1/size": "32M",
            f"{folder}/index1/shared_cpu_list": "0-3",
        },
    )
    caches = read_caches(root)
    assert [(c["level"], c["size_bytes"], c["shared_by"]) for c in caches] == [
        (1, 48 << 10, [0]),
        (3, 32 << 20, [0, 1, 2, 3]),
    ]
    environment = {"caches": caches, "topology": {"online": list(range(8))}}
    assert last_level_cache_bytes(environment) == 64 << 20
    assert last_level_cache_bytes({"caches": [], "topology": {"online": [0]}}) == 0


def test_collect_is_json_and_has_a_stable_id():
    """Check that the record survives JSON and that load does not enter the id."""
    environment = collect(variables={})
    copy = json.loads(json.dumps(environment))
    assert copy == environment
    identity = environment_id(environment)
    assert len(identity) == 12
    copy["load_average"] = [99.0, 99.0, 99.0]
    copy["memory"]["available_bytes"] = 1
    copy["clock"]["cost_ns"] = 1e6
    copy["libraries"] = []
    copy["variables"] = read_variables({"OMP_WAIT_POLICY": "active"})
    assert environment_id(copy) == identity


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "9.9"},
        {"affinity": [17]},
        {"quota_cpus": 1.5},
        {"packages": {"numpy": "0.1"}},
        {"variables": read_variables({"OPENBLAS_CORETYPE": "Haswell"})},
    ],
)
def test_what_changes_measurements_changes_the_id(change):
    """Check that samples of different environments cannot be mixed unnoticed."""
    environment = collect(variables={})
    assert environment_id({**environment, **change}) != environment_id(environment)


def test_collect_on_an_empty_machine(tmp_path):
    """Check that a machine that hides everything gives a record with None, not an error."""
    environment = collect(root=tmp_path, variables={})
    assert environment["quota_cpus"] is None
    assert environment["pressure_some_percent"] is None
    assert environment["caches"] == []
    assert not environment["topology"]["known"]
    json.dumps(environment)
    environment_id(environment)


def test_collect_imports_nothing_heavy():
    """Check that a measured process can collect without loading NumPy, and so without its BLAS threads."""
    code = (
        "import sys; from forktask.experiments.machine import environment\n"
        "environment.collect(); print('numpy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("num_cpus, counts", [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_thread_counts(num_cpus, counts):
    """Check powers of two and the number itself."""
    assert core_counts(num_cpus) == tuple(counts)


def test_machine_row_is_complete():
    """Check fields and signs of the measured row, not its values."""
    row = measure_machine([1, 2], cpus=available_cpus()[:2], seconds=0.015)
    assert json.loads(json.dumps(row)) == row
    assert row["capacity"].keys() == row["bandwidth_bytes_per_s"].keys() == {"1", "2"}
    assert row["capacity"]["1"] == 1.0
    assert row["capacity"]["2"] > 0
    assert row["peak_flops_per_s_1thread"] >= row["median_flops_per_s_1thread"] > 0


@pytest.mark.parametrize("name", instruction_sets.available())
def test_multiply_add_loops_are_not_folded(name):
    """Check that no more flops a cycle come out than any core has: the compiler kept every step."""
    peak = machine_peaks.measure_peak_flops(0.02, name)
    lanes = {"generic": 4, "avx2": 8, "avx512": 16}[name]
    # No CPU has more than four vector pipes; cycles are counted apart, so leave room for a disturbance
    # between.
    assert peak["flops_per_cycle"] < 2 * 16 * lanes
    assert peak["instruction_set"] == name


def test_threads_on_one_cpu_do_the_work_of_one():
    """Check that time slices of one CPU do not count as several."""
    cpu = available_cpus()[0]
    assert machine_peaks.measure_capacity(8, 0.1, [cpu] * 8) < 4


def test_measuring_leaves_the_affinity_alone():
    """Check that pinning touches the team's own threads only."""
    before = os.sched_getaffinity(0)
    machine_peaks.measure_bandwidth(1, 0.01, 1 << 20, [min(before)])
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("stream", ["triad", "update"])
def test_streams(stream):
    """Check that each loop runs over working sets of any size and gives a rate that memory can have."""
    for size in (4096, 5000, 1 << 20):
        assert 1e8 < machine_peaks.measure_bandwidth(1, 0.006, size, stream=stream) < 1e13


def test_an_unknown_instruction_set_is_refused():
    """Check that the value is named."""
    with pytest.raises(UsageError, match="got 'mmx'"):
        machine_peaks.measure_peak_flops(0.1, "mmx")


def test_a_cpu_that_does_not_exist_is_refused():
    """Check that a failed pinning stops the whole team instead of measuring unpinned."""
    with pytest.raises(MachineError, match="Invalid argument"):
        machine_peaks.measure_capacity(2, 0.05, [available_cpus()[0], 4000])
