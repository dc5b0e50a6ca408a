"""What boards and servers tell in /sys, on made-up trees: energy, heat, swap, shared memory, and kinds of cores."""

import time
from functools import partial

import pytest
from experiments.machine.test_environment import topology_files, write_tree

from forktask.experiments.machine.disturbance import (
    Disturbance,
    is_throttled,
    read_clocks_hz,
    read_memory,
    read_temperature_c,
)
from forktask.experiments.machine.energy import EnergyMeter, energy_text
from forktask.experiments.machine.environment import collect
from forktask.experiments.machine.topology import core_kinds, cpu_order, read_topology
from forktask.experiments.training import trainer
from forktask.experiments.training.config import TrainingConfig
from forktask.experiments.training.train import train

PI = {
    "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
    "proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0",
    "proc/meminfo": "MemTotal: 3884376 kB\nMemAvailable: 3000000 kB\nSwapTotal: 102396 kB\nSwapFree: 2396 kB\n",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "61350\n",
    "sys/devices/platform/soc/soc:firmware/get_throttled": "0\n",
}
JETSON = {
    "proc/device-tree/model": "NVIDIA Jetson Xavier NX Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p3509-0000+p3668-0000\0nvidia,tegra194\0",
    "sys/class/thermal/thermal_zone0/type": "CPU-therm\n",
    "sys/class/thermal/thermal_zone0/temp": "43500\n",
    # A constant of the board's power chip, which is no temperature.
    "sys/class/thermal/thermal_zone1/type": "PMIC-Die\n",
    "sys/class/thermal/thermal_zone1/temp": "100000\n",
    "sys/class/thermal/cooling_device0/type": "thermal-cpufreq-0\n",
    "sys/class/thermal/cooling_device0/cur_state": "0\n",
    "sys/class/hwmon/hwmon3/name": "ina3221\n",
    **{
        f"sys/class/hwmon/hwmon3/{name}": text
        for channel, (rail, millivolts, milliamperes) in enumerate(
            (("VDD_IN", 5000, 2000), ("VDD_CPU_GPU_CV", 5000, 800), ("VDD_SOC", 5000, 600)), 1
        )
        for name, text in (
            (f"in{channel}_label", rail),
            (f"in{channel}_input", f"{millivolts}\n"),
            (f"curr{channel}_input", f"{milliamperes}\n"),
        )
    },
    "sys/class/hwmon/hwmon3/in7_label": "sum of shunt voltages\n",
    "sys/class/hwmon/hwmon3/curr4_input": "3400\n",
}


def rapl(*microjoules, limit=262143328850):
    """Zones of two packages, their cores and memory, and the second interface to the first package."""
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl-mmio:0": "package-0",
        "intel-rapl:2": "psys",
    }
    return {
        f"sys/class/powercap/{zone}/{file}": f"{text}\n"
        for (zone, name), count in zip(zones.items(), microjoules, strict=True)
        for file, text in (("name", name), ("energy_uj", count), ("max_energy_range_uj", limit))
    }


def test_rapl_counts_packages_and_memory_once_and_over_its_wrap(tmp_path):
    """Check that cores, psys and the second interface are left out, and a counter that starts over."""
    write_tree(tmp_path, rapl(1_000_000, 500, 9_000_000, 5_000_000, 77, 88, limit=10_000_000))
    with EnergyMeter(tmp_path) as meter:
        write_tree(tmp_path, rapl(3_000_000, 700, 1_000_000, 5_500_000, 99, 99, limit=10_000_000))
    write_tree(tmp_path, rapl(*[9_000_000] * 6, limit=10_000_000))
    assert meter.source == energy_text(tmp_path) == "RAPL: package-0, dram, package-1"
    assert meter.joules() == pytest.approx(2 + 2 + 0.5)
    assert meter.result(10) == {
        "joules": pytest.approx(4.5),
        "joules_per_step": pytest.approx(0.45),
        "source": meter.source,
        "error": None,
    }


def test_a_machine_without_counters_and_sensors_says_so(tmp_path):
    """Check that no energy is None with a reason, and no thread is started for it."""
    with EnergyMeter(tmp_path) as meter:
        assert meter._thread is None
    assert meter.joules() is None
    assert "neither energy counters (powercap) nor INA sensors (hwmon)" in meter.result(1)["error"]


def test_the_rail_that_feeds_a_jetson_is_its_power(tmp_path):
    """Check voltage times current of one channel of an INA3221, integrated over time."""
    write_tree(tmp_path, JETSON)
    start = time.monotonic()
    with EnergyMeter(tmp_path) as meter:
        inside = time.monotonic()
        time.sleep(0.05)
        low = 10 * (time.monotonic() - inside)  # 5 V x 2 A
    assert meter.source == "INA: VDD_IN"
    assert low <= meter.joules() <= 10 * (time.monotonic() - start)


def test_a_sensor_that_stops_answering_ends_the_measurement(tmp_path):
    """Check that half an energy is no energy."""
    write_tree(tmp_path, JETSON)
    with EnergyMeter(tmp_path) as meter:
        (tmp_path / "sys/class/hwmon/hwmon3/curr1_input").unlink()
    assert meter.joules() is None and meter.error == "VDD_IN stopped answering"


@pytest.mark.parametrize(
    "files, temperature, throttled",
    [
        (PI, 61.35, False),
        (PI | {"sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n"}, 61.35, True),
        # Throttled since the start, but no more.
        (PI | {"sys/devices/platform/soc/soc:firmware/get_throttled": "0x50000\n"}, 61.35, False),
        (JETSON, 43.5, False),
        (JETSON | {"sys/class/thermal/cooling_device0/cur_state": "3\n"}, 43.5, True),
        ({"sys/class/hwmon/hwmon1/name": "k10temp", "sys/class/hwmon/hwmon1/temp1_input": "55250"}, 55.25, None),
        ({}, None, None),
    ],
)
def test_heat(tmp_path, files, temperature, throttled):
    """Check temperature, and throttling at this moment, on several machines."""
    write_tree(tmp_path, files)
    assert read_temperature_c(tmp_path) == temperature
    assert is_throttled(tmp_path) is throttled


def test_the_clock_of_each_cpu(tmp_path):
    """Check CPUs with a clock, one whose clock is hidden, and a damaged file."""
    folder = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    write_tree(
        tmp_path, {folder.format(0): "3100000\n", folder.format(2): "1200000\n", folder.format(3): "<unknown>\n"}
    )
    assert read_clocks_hz([0, 1, 2, 3], tmp_path) == {"0": 3.1e9, "2": 1.2e9}


def test_throttling_is_counted_between_two_readings(tmp_path):
    """Check the kernel's counters of all CPUs, states at both readings, and that hidden is not zero."""
    folder = "sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
    write_tree(tmp_path, {folder.format(0): "5\n", folder.format(1): "7\n"})
    disturbance = Disturbance(tmp_path)
    before = disturbance.read()
    write_tree(tmp_path, {folder.format(0): "6\n", folder.format(1): "9\n"})
    assert disturbance.since(before)["thermal_throttles"] == 3
    board = Disturbance(write_tree(tmp_path / "pi", PI))
    before = board.read()
    assert board.since(before)["thermal_throttles"] == 0
    write_tree(tmp_path / "pi", {"sys/devices/platform/soc/soc:firmware/get_throttled": "4\n"})
    assert board.since(before)["thermal_throttles"] == 1
    hidden = Disturbance(tmp_path / "nothing")
    assert hidden.since(hidden.read())["thermal_throttles"] is None


def test_the_environment_knows_boards(tmp_path):
    """Check model, swap, heat, shared memory and energy of two boards."""
    board = collect(write_tree(tmp_path / "pi", PI))["board"]
    assert board == {
        "model": "Raspberry Pi 4 Model B Rev 1.4",
        "shared_gpu_memory": False,
        "temperature_c": 61.35,
        "throttled": False,
        "energy": "not available: the kernel shows neither energy counters (powercap) nor INA sensors (hwmon)",
    }
    memory = read_memory(tmp_path / "pi")
    assert (memory["swap_bytes"], memory["swap_free_bytes"]) == (102396 * 1024, 2396 * 1024)
    board = collect(write_tree(tmp_path / "jetson", JETSON))["board"]
    assert board["shared_gpu_memory"] and board["energy"] == "INA: VDD_IN"


@pytest.mark.parametrize("sockets", [(0, 0), (0, 1)])
def test_big_cores_come_first_also_in_a_second_cluster(tmp_path, sockets):
    """Check order and kinds of cores, also with a kernel that calls each cluster a socket, the slow one first."""
    cores = {c: (sockets[c >= 4], 0, str(c)) for c in range(6)}
    write_tree(tmp_path, topology_files(cores, capacity={c: 1024 if c >= 4 else 446 for c in cores}))
    assert cpu_order(6, range(6), root=tmp_path) == [4, 5, 0, 1, 2, 3]
    kinds = core_kinds(read_topology(tmp_path), range(6))
    assert [kind["text"] for kind in kinds] == ["2 CPUs of capacity 1024 (4-5)", "4 CPUs of capacity 446 (0-3)"]


def test_training_tells_the_energy_of_each_epoch(tmp_path, monkeypatch):
    """Check column, line and checkpoint of a training on a machine with sensors."""
    write_tree(tmp_path / "root", JETSON)
    monkeypatch.setattr(trainer, "EnergyMeter", partial(EnergyMeter, tmp_path / "root"))
    lines = []
    config = TrainingConfig(network="lenet5", data="synthetic:200", epochs=1, out=str(tmp_path / "run"))
    train(config, report=lines.append)
    header, row = (tmp_path / "run" / "epochs.csv").read_text().splitlines()
    values = dict(zip(header.split(","), row.split(","), strict=True))
    assert float(values["joules"]) >= 9.99 * float(values["time_s"]) * 0.5 > 0
    assert any(line.endswith(" J") for line in lines)
    train(config.with_changes(epochs=2), resume=True, report=lines.append)
    assert len((tmp_path / "run" / "epochs.csv").read_text().splitlines()) == 3
