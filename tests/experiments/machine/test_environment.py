"""The environment record, on made-up /proc and /sys trees; nothing here depends on the speed of this machine."""

import json
import os

import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.machine import machine_peaks
from forktask.experiments.machine.disturbance import Disturbance, read_quota
from forktask.experiments.machine.environment import collect, environment_id, read_variables
from forktask.experiments.machine.topology import (
    cpu_order,
    format_cpu_list,
    last_level_cache_bytes,
    parse_cpu_list,
    read_caches,
    read_topology,
)


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


def test_order_is_the_cores_of_all_sockets_then_siblings(two_sockets, tmp_path):
    """Check two sockets x two cores x SMT, parts of these, and interleaved numbering of a socket's nodes."""
    for usable in (range(8), [4, 5, 1], [7, 6]):
        expected = {8: [*range(8)], 3: [4, 1, 5], 2: [6, 7]}[len(usable)]
        for n in range(1, len(usable) + 1):
            assert cpu_order(n, usable, root=two_sockets) == expected[:n]
    root = write_tree(tmp_path / "nodes", topology_files({c: (0, c % 2, str(c)) for c in range(4)}))
    assert cpu_order(4, range(4), root=root) == [0, 2, 1, 3]


def test_too_many_threads_is_a_usage_error(two_sockets):
    """Check that more workers than CPUs need a word from the user, and then start over."""
    with pytest.raises(UsageError, match=r"3.*--oversubscribe"):
        cpu_order(3, [0, 1], root=two_sockets)
    assert cpu_order(3, [0, 1], root=two_sockets, oversubscribe=True) == [0, 1, 0]
    with pytest.raises(UsageError, match="positive, got 0"):
        cpu_order(0, [0, 1], root=two_sockets)


def test_hidden_topology_is_said(tmp_path):
    """Check that a /sys without topology is reported as unknown, one core a CPU."""
    root = write_tree(tmp_path, {"sys/devices/system/cpu/online": "0-1\n"})
    topology = read_topology(root)
    assert not topology["known"]
    assert topology["cores"] == 2


def v1_quota(group, quota):
    """Files of the CPU controller of cgroups of version 1."""
    folder, _, path = group.partition(":")
    names = {"cfs_quota_us": quota, "cfs_period_us": 100000}
    files = {f"sys/fs/cgroup/{folder}{path}/cpu.{name}": f"{number}\n" for name, number in names.items()}
    return {"proc/self/cgroup": f"4:memory:/m\n3:{group}\n", **files}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (v1_quota("cpu,cpuacct:/docker/x", 50000), 0.5),
        (v1_quota("cpu:/", -1), None),
        (v1_quota("cpu:/a:b", 300000), 3.0),
        ({}, None),
    ],
    ids=["v2", "v2, parent is tighter", "v2, none", "v1", "v1, none", "v1 path with colons", "no cgroups"],
)
def test_container_quota(tmp_path, files, expected):
    """Check the CPU quota of both cgroup versions, at any level, seen from inside or outside a container."""
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
    """Check the counters of waiting, of stolen and of throttled time."""
    write_tree(tmp_path, disturbance_files(pressure=1000, steal=7, throttled=500))
    disturbance = Disturbance(tmp_path)
    before = disturbance.read()
    write_tree(tmp_path, disturbance_files(pressure=4000, steal=9, throttled=1700))
    added = disturbance.since(before)
    assert set(added) == set(Disturbance.FIELDS)
    assert (added["pressure_some_us"], added["steal_ticks"], added["throttled_us"]) == (3000, 2, 1200)
    assert added["nonvoluntary_switches"] >= 0


def test_crippling_variables_are_found():
    """Check that variables are told apart by what they do, and unrelated ones are left alone."""
    values_and_kinds = {
        "OPENBLAS_CORETYPE": ("Haswell", "cripples"),
        "OPENBLAS_L2_SIZE": ("1", "cripples"),
        "OMP_NUM_THREADS": ("3", "threads"),
        "OMP_PROC_BIND": ("true", "placement"),
        "OMP_DYNAMIC": ("false", "threads"),
        "KMP_SOMETHING_NEW": ("1", "unknown"),
    }
    variables = {name: value for name, (value, _) in values_and_kinds.items()} | {"HOME": "/", "COMP_LINE": "x"}
    result = {v["name"]: v["kind"] for v in read_variables(variables)}
    assert result == {name: kind for name, (_, kind) in values_and_kinds.items()}
    assert read_variables({"OMP_DYNAMIC": "TRUE"})[0]["kind"] == "cripples"


def test_caches_and_their_total(tmp_path):
    """Check sizes, sharing, and the sum over several last-level caches."""
    values = {
        "index0": {"level": 1, "type": "Data", "size": "48K", "coherency_line_size": 64, "shared_cpu_list": 0},
        "index1": {"level": 3, "type": "Unified", "size": "32M", "shared_cpu_list": "0-3"},
    }
    folder = "sys/devices/system/cpu/cpu0/cache"
    files = {f"{folder}/{index}/{name}": str(value) for index, of in values.items() for name, value in of.items()}
    root = write_tree(tmp_path, files)
    caches = read_caches(root)
    assert [(c["level"], c["size_bytes"], c["shared_by"]) for c in caches] == [
        (1, 48 << 10, [0]),
        (3, 32 << 20, [0, 1, 2, 3]),
    ]
    assert last_level_cache_bytes(root, range(4)) == 32 << 20
    assert last_level_cache_bytes(tmp_path / "nothing", [0]) == 0


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


def test_measuring_leaves_the_affinity_alone():
    """Check that pinning touches the team's own threads only."""
    before = os.sched_getaffinity(0)
    machine_peaks.measure_bandwidth(1, 0.01, 1 << 20, [min(before)])
    assert os.sched_getaffinity(0) == before
