"""Temperature of the processor, clocks of its CPUs, and whether heat or low voltage slows it, from /sys.

Functions take `root`, the folder that stands for `/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from .proc import parsed, read_int, read_text

PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
# Bits of a Raspberry Pi's firmware: low voltage, capped frequency, throttled, soft limit of temperature, each now.
PI_SLOWED = 0b1111


def read_temperature_c(root="/") -> float | None:
    """Return the temperature of the processor's hottest sensor, in degrees Celsius; None if the machine hides it."""
    result = []
    for zone in Path(root, "sys/class/thermal").glob("thermal_zone*"):
        if re.search(r"cpu|pkg|soc|core|tj", (read_text(zone / "type") or "").lower()):
            result.append(read_int(zone / "temp"))
    for folder in Path(root, "sys/class/hwmon").glob("hwmon*"):
        if read_text(folder / "name") in PROCESSOR_SENSORS:
            result += [read_int(path) for path in folder.glob("temp*_input")]
    # A sensor that is switched off answers with an error or with a temperature far below zero.
    known = [value for value in result if value is not None and value > -50_000]
    return max(known) / 1000 if known else None


def read_clocks_hz(cpus: Iterable[int], root="/") -> dict[str, float]:
    """Return the clock of some CPUs at this moment, without those whose clock the machine hides."""
    files = {cpu: Path(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus}
    return {str(cpu): 1e3 * khz for cpu, path in files.items() if (khz := read_int(path))}


def count_throttles(root="/") -> int | None:
    """Return how often heat has throttled the CPUs so far, summed over CPUs and packages; None where nothing counts
    them."""
    files = Path(root, "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    counts = [count for count in map(read_int, files) if count is not None]
    return sum(counts) if counts else None


def is_throttled(root="/") -> bool | None:
    """Return whether a cooling device or the firmware slows the CPUs at this moment; None where neither tells."""
    result = []
    for device in Path(root, "sys/class/thermal").glob("cooling_device*"):
        if (read_text(device / "type") or "").startswith(("thermal-cpufreq", "cpufreq", "Processor")):
            state = read_int(device / "cur_state")
            result += [] if state is None else [state > 0]
    for path in Path(root, "sys/devices/platform").glob("soc*/soc*firmware/get_throttled"):
        bits = parsed(lambda text: int(text, 16), read_text(path))
        result += [] if bits is None else [bool(bits & PI_SLOWED)]
    return any(result) if result else None
