"""Trees in the form of real machines' /sys and /proc: kinds of cores, NUL bytes, offline CPUs, containers, memory."""

import shutil
import subprocess
from pathlib import Path

import pytest
from experiments.machine.test_environment import TWO_SOCKETS, topology_files, write_tree
from experiments.machine.test_info import make_environment, make_machine

from forktask.experiments.machine import disturbance, fitness, limits
from forktask.experiments.machine.disturbance import Disturbance, cgroup_folders, oom_kills, read_memory, read_quota
from forktask.experiments.machine.environment import collect
from forktask.experiments.machine.info import format_page
from forktask.experiments.machine.topology import core_counts, core_kinds, cpu_order, read_topology

CPU = "sys/devices/system/cpu"
MIB = 1 << 20


def each(cpus, name, text):
    """Files with the same value for some CPUs."""
    return {f"{CPU}/cpu{cpu}/{name}": f"{text}\n" for cpu in cpus}


def caches(groups, level=3, size="{}M", name="shared_cpu_list"):
    """Files of caches given as (size, CPUs, text that says who shares it)."""
    return {
        f"{CPU}/cpu{cpu}/cache/index{level}/{file}": text
        for number, cpus, shared in groups
        for cpu in cpus
        for file, text in (("level", f"{level}\n"), ("size", size.format(number)), (name, shared))
    }


# Two P cores with siblings, and four E cores.
HYBRID = topology_files({c: (0, 0, f"{c & ~1}-{c | 1}" if c < 4 else str(c)) for c in range(8)})
P_CORES, E_CORES = range(4), range(4, 8)
SAID = {
    "highest_perf": each(P_CORES, "acpi_cppc/highest_perf", 68) | each(E_CORES, "acpi_cppc/highest_perf", 40),
    # The firmware's fault: all the same.
    "cpuinfo_max_freq": each(range(8), "acpi_cppc/highest_perf", 255)
    | each(P_CORES, "cpufreq/cpuinfo_max_freq", 5_100_000)
    | each(E_CORES, "cpufreq/cpuinfo_max_freq", 3_000_000),
    "cpu_atom": {"sys/devices/cpu_atom/cpus": "4-7\n"}
    | each(P_CORES, "cpufreq/cpuinfo_max_freq", 5_200_000)
    | each(E_CORES, "cpufreq/cpuinfo_max_freq", 3_900_000),
    "cpu_core": {"sys/devices/cpu_core/cpus": "0-3\n"},
}
CAPACITY = {"highest_perf": 602, "cpuinfo_max_freq": 602, "cpu_atom": 768}


@pytest.mark.parametrize("said", SAID)
def test_p_and_e_cores_are_two_kinds(tmp_path, said):
    """Check each way in which an Intel hybrid tells its kinds, and the order: P cores, E cores, then siblings."""
    topology = read_topology(write_tree(tmp_path, HYBRID | SAID[said]))
    assert [cpu["kind"] for cpu in topology["cpus"]] == [0] * 4 + [1] * 4
    assert {cpu["capacity"] for cpu in topology["cpus"][4:]} == {CAPACITY.get(said)}
    order = [0, 2, 4, 5, 6, 7, 1, 3]
    assert cpu_order(8, range(8), root=tmp_path) == order
    assert [kind["cpus"] for kind in core_kinds(topology, range(8))] == [order[:2], order[2:6], order[6:]]


# Two clusters of five slow and five fast cores each, with a last-level cache each, as a DGX Spark says of itself.
SPARK_SPEED = [718] * 5 + [997] * 5 + [731] * 5 + [1017] * 4 + [1024]
SPARK = (
    topology_files({c: (0, 0, str(c)) for c in range(20)}, capacity=SPARK_SPEED)
    | caches([(8, range(10), "0-9\n"), (16, range(10, 20), "10-19\n")])
)  # fmt: skip


def test_kinds_end_at_a_gap_and_advice_keeps_several_cpus(tmp_path):
    """Check that nearly equal cores are one kind, on a machine with 20 cores and on a phone with a prime core."""
    environment = collect(write_tree(tmp_path / "spark", SPARK))
    assert [kind["text"] for kind in environment["core_kinds"]] == [
        "10 CPUs of capacity 1024 (5-9,15-19)",
        "10 CPUs of capacity 731 (0-4,10-14)",
    ]
    assert environment["last_level_cache_bytes"] == 24 * MIB
    phone = {c: (0, 0, str(c)) for c in range(8)}
    environment = collect(
        write_tree(tmp_path / "phone", topology_files(phone, capacity=[160] * 4 + [512] * 3 + [1024]))
    )
    changes = {key: environment[key] for key in ("topology", "core_kinds")} | {"affinity": [*phone]}
    (reason,) = fitness.verdict(make_environment(**changes), make_machine())["reasons"]
    assert reason["remedy"].endswith("taskset -c 4-6")
    nearly = topology_files({c: (0, 0, str(c)) for c in range(4)}) | each([0], "acpi_cppc/highest_perf", 231)
    topology = read_topology(write_tree(tmp_path / "chosen", nearly | each([1, 2, 3], "acpi_cppc/highest_perf", 196)))
    assert {(cpu["kind"], cpu["capacity"]) for cpu in topology["cpus"]} == {(0, None)}


def test_lists_that_end_in_a_nul_byte_are_read(tmp_path):
    """Check a kernel that appends a NUL byte to every list."""
    files = topology_files({c: (c // 2, c // 2, str(c)) for c in range(4)})
    topology = read_topology(write_tree(tmp_path, {path: text.strip() + "\n\0" for path, text in files.items()}))
    assert topology["known"] and (topology["online"], topology["sockets"], topology["nodes"]) == ([0, 1, 2, 3], 2, 2)


def readable_files():
    """Every file that some reader looks at, of a machine with everything."""
    v1 = "sys/fs/cgroup/memory/job"
    return (
        SPARK
        | each(range(20), "cpufreq/cpuinfo_max_freq", 3_000_000)
        | each(range(20), "thermal_throttle/core_throttle_count", 1)
        | {
            "sys/devices/cpu_core/cpus": "0-9",
            "sys/devices/platform/soc/soc:firmware/get_throttled": "0",
            "sys/class/powercap/intel-rapl:0/name": "package-0",
            "sys/class/powercap/intel-rapl:0/energy_uj": "1",
            "proc/self/cgroup": "4:memory:/job\n3:cpu:/\n0::/\n",
            "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 500 kB\nSwapTotal: 2 kB\nSwapFree: 1 kB\n",
            "proc/loadavg": "0.1 0.2 0.3 1/2 3",
            "proc/pressure/cpu": "some avg10=1.0 total=5",
            "proc/stat": "cpu 1 2 3 4 5 6 7 8 9 10",
            "proc/vmstat": "oom_kill 1",
            "sys/fs/cgroup/cpu.max": "100000 100000",
            "sys/fs/cgroup/cpu.stat": "throttled_usec 1",
            "sys/fs/cgroup/memory.max": "100000",
            "sys/fs/cgroup/memory.current": "1000",
            "sys/fs/cgroup/memory.stat": "active_file 5\ninactive_file 5",
            f"{v1}/memory.limit_in_bytes": "100000",
            f"{v1}/memory.usage_in_bytes": "1000",
        }
    )


@pytest.mark.parametrize(
    "damage", ["", "some", "x", "-3", "9-1", "0-99999999999", "1,x", "7 0", "\0", "(null)", "a b c d"]
)
def test_a_value_that_cannot_be_parsed_counts_as_hidden(tmp_path, damage):
    """Check that no reader raises, whatever stands in the files: the whole text, or what follows each name."""
    files = readable_files()
    for name, damaged in (
        ("whole", dict.fromkeys(files, damage)),
        ("values", {p: "\n".join(f"{x.split()[0]} {damage}" for x in t.split("\n") if x) for p, t in files.items()}),
    ):
        # Without this file no cgroup is read, damaged or not.
        root = write_tree(tmp_path / name, damaged | {"proc/self/cgroup": f"nonsense\n{files['proc/self/cgroup']}"})
        environment = collect(root)
        limits.working_set(environment)
        described = {"environment": environment | {"affinity": environment["topology"]["online"]}, "gpus": []}
        machine = make_machine()
        assert format_page(
            described | {"machine": machine, "verdict": fitness.verdict(described["environment"], machine)}
        )
        cpu_order(1, environment["topology"]["online"][:1], root=root)
        core_counts(environment["topology"]["online"], root=root)
        disturbance = Disturbance(root)
        disturbance.since(disturbance.read())
        oom_kills(root)


LAST_LEVEL = {
    # Half of the second socket is offline.
    "offline": ([(30, range(8), "0-7"), (30, range(8, 12), "8-11")], "shared_cpu_list", 12, 60),
    # Two cores of four threads share a cache; masks in groups of 32 bits.
    "mask": ([(10, range(8 * n, 8 * n + 8), f"{0xFF << 8 * n:016x}") for n in range(4)], "shared_cpu_map", 32, 40),
}


@pytest.mark.parametrize("case", LAST_LEVEL)
def test_each_last_level_cache_counts_once(tmp_path, case):
    """Check sockets with unequal numbers of CPUs, and caches that tell by a mask alone who shares them."""
    groups, name, count, mebibytes = LAST_LEVEL[case]
    groups = [(n, cpus, f"{text[:-8]},{text[-8:]}" if len(text) == 16 else text) for n, cpus, text in groups]
    files = topology_files({c: (0, 0, str(c)) for c in range(count)}) | caches(groups, name=name)
    environment = collect(write_tree(tmp_path, files))
    assert environment["last_level_cache_bytes"] == mebibytes * MIB
    assert environment["caches"][-1]["shared_by"] == list(groups[0][1])


def test_a_cpu_that_one_may_run_on_is_online(tmp_path):
    """Check a container whose `online` counts from 0 while the process's mask has the host's numbers."""
    root = write_tree(tmp_path, {f"{CPU}/online": "0-1\n"} | each([8, 9], "topology/core_cpus_list", "8-9"))
    topology = read_topology(root, [8, 9])
    assert topology["online"] == [0, 1, 8, 9]
    assert cpu_order(2, [8, 9], root=root) == [8, 9] and core_counts([8, 9], root=root) == (1,)
    assert len(core_kinds(topology, [8, 9])) == 1


def test_an_old_kernel_without_a_list_of_cpus_is_read(tmp_path):
    """Check that CPUs with a place are online, one without is not, and what else is named like a CPU."""
    files = {path: text for path, text in topology_files(TWO_SOCKETS).items() if not path.endswith("online")}
    files |= {f"{CPU}/cpu8/online": "0\n", f"{CPU}/cpu0x/topology/core_id": "0\n"}
    topology = read_topology(write_tree(tmp_path, files))
    assert (topology["online"], topology["cores"], topology["sockets"]) == ([*range(8)], 4, 2)


def test_cores_means_cores(tmp_path):
    """Check that siblings are no cores, unless asked for, or alone."""
    root = write_tree(tmp_path, topology_files(TWO_SOCKETS))
    assert core_counts(range(8), root=root) == (1, 2, 4)
    assert core_counts(range(8), siblings=True, root=root) == (1, 2, 4, 8)
    assert core_counts([0, 4, 1], root=root) == (1, 2) and core_counts([4, 5, 6], root=root) == (1, 2, 3)


MEMINFO = {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n"}  # 64 and 32 GiB


def group(folder, limit, used, files=0, version=2):
    """Files of a memory cgroup; sizes in MiB."""
    names = ("memory.max", "memory.current", "") if version == 2 else (
        "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")  # fmt: skip
    half = files * MIB // 2
    stat = f"inactive_file 0\nactive_file 0\n{names[2]}inactive_file {half}\n{names[2]}active_file {half}\n"
    if version == 2:
        stat = f"inactive_file {half}\nactive_file {half}\n"
    texts = (str(limit if isinstance(limit, str) else limit * MIB), str(used * MIB), stat)
    return {f"{folder}/{name}": text for name, text in zip((*names[:2], "memory.stat"), texts, strict=True)}


V1 = "sys/fs/cgroup/memory"
NO_LIMIT = "9223372036854771712"
MEMORY = {
    "none": ({}, None, 32768),
    "v2, nested: the parent is tighter": (
        {"proc/self/cgroup": "0::/slurm/job/step\n"}
        | group("sys/fs/cgroup/slurm/job/step", "max", 100)
        | group("sys/fs/cgroup/slurm/job", 400, 150, files=40)
        | group("sys/fs/cgroup/slurm", 4000, 3000),
        400,
        290,
    ),
    "v2, a sibling has used up the parent": (
        {"proc/self/cgroup": "0::/a/b\n"}
        | group("sys/fs/cgroup/a/b", 400, 100)
        | group("sys/fs/cgroup/a", 1000, 950, files=20),
        400,
        70,
    ),
    "v2, a container that sees its group as the root": (
        {"proc/self/cgroup": "0::/docker/1234\n"} | group("sys/fs/cgroup", 400, 100),
        400,
        300,
    ),
    "v1": (
        {"proc/self/cgroup": "4:memory:/job\n1:cpu:/\n0::/\n"}
        | group(V1, NO_LIMIT, 9000, version=1)
        | group(f"{V1}/job", 400, 150, files=40, version=1),
        400,
        290,
    ),
    "v1, nested": (
        {"proc/self/cgroup": "4:memory:/job/step\n"}
        | group(f"{V1}/job", 300, 120, version=1)
        | group(f"{V1}/job/step", NO_LIMIT, 10, version=1),
        300,
        180,
    ),
    "v2, slowed down above high": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.high": str(250 * MIB)}
        | group("sys/fs/cgroup", 400, 100, files=20),
        250,
        170,
    ),
    "used beyond the limit": ({"proc/self/cgroup": "0::/\n"} | group("sys/fs/cgroup", 100, 120), 100, 0),
}


@pytest.mark.parametrize("case", MEMORY)
def test_free_memory_is_the_least_under_all_limits(tmp_path, case):
    """Check limits of both cgroup versions, with files in the page cache counted as free, and the working set."""
    files, limit, free = MEMORY[case]
    environment = collect(write_tree(tmp_path, SPARK | MEMINFO | files))
    memory = environment["memory"]
    assert memory["total_bytes"] == 64 << 30
    assert memory["limit_bytes"] == (None if limit is None else limit * MIB)
    assert memory["available_bytes"] == free * MIB
    assert limits.working_set(environment) <= free * MIB // 4


@pytest.mark.parametrize(
    ("files", "swap", "free"),
    [
        ({}, 1000, 900),
        ({"sys/fs/cgroup/memory.swap.max": "0"}, 0, 0),
        ({"sys/fs/cgroup/memory.swap.max": "max"}, 1000, 900),
        (
            {"sys/fs/cgroup/memory.swap.max": f"{600 * MIB}", "sys/fs/cgroup/memory.swap.current": f"{70 * MIB}"},
            600,
            530,
        ),
    ],
    ids=["no limit", "none for the group", "max", "limited"],
)
def test_swap_is_that_of_the_group(tmp_path, files, swap, free):
    """Check that a container without swap on a machine with swap has none, and one with a limit what is left of it."""
    meminfo = f"MemTotal: {64 << 20} kB\nSwapTotal: {1000 << 10} kB\nSwapFree: {900 << 10} kB\n"
    memory = read_memory(write_tree(tmp_path, files | {"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n"}))
    assert (memory["swap_bytes"], memory["swap_free_bytes"]) == (swap * MIB, free * MIB)


def test_a_group_under_two_names_counts_once(tmp_path):
    """Check that a controller's folder and the link to it are not summed."""
    root = write_tree(tmp_path, {"proc/self/cgroup": "1:cpu,cpuacct:/\n", "sys/fs/cgroup/cpu,cpuacct/cpu.stat": ""})
    (root / "sys/fs/cgroup/cpu").symlink_to("cpu,cpuacct")
    assert len(cgroup_folders(root)) == 1 and read_quota(root) is None


def test_a_process_holds_no_more_than_its_limit(monkeypatch):
    """Check that files mapped by the process, which count as free, do not lift what it may have above the limit."""
    memory = {"available_bytes": 390 * MIB, "limit_bytes": 400 * MIB}
    monkeypatch.setattr(disturbance, "read_memory", lambda: memory)
    monkeypatch.setattr(disturbance, "resident_bytes", lambda: 30 * MIB)
    assert disturbance.own_and_free_bytes() == 400 * MIB
    memory["limit_bytes"] = None
    assert disturbance.own_and_free_bytes() == 420 * MIB


PINS = r"""
#define _GNU_SOURCE
#include <sched.h>
static int seen;
static int record(pid_t pid, size_t size, const cpu_set_t *set)
{
    (void)pid;
    seen = CPU_ISSET_S(2000, size, set) && CPU_COUNT_S(size, set) == 1;
    return 0;
}
#define sched_setaffinity record
#include "experiments/machine/core_latency.c"
int main(void) { return pin(2000) == 0 && seen ? 0 : 1; }
"""


@pytest.mark.cc
def test_hand_overs_are_pinned_beyond_1024_cpus(tmp_path):
    """Check the mask that the C code gives the kernel for CPU 2000."""
    root = Path(__file__).parents[3]
    (tmp_path / "pins.c").write_text(PINS)
    program = tmp_path / "pins"
    command = [shutil.which("cc"), "-I", root, "-I", root / "experiments/machine", tmp_path / "pins.c", "-o", program]
    subprocess.run([*map(str, command), "-lpthread"], check=True, timeout=60)
    assert subprocess.run([program], timeout=60).returncode == 0
