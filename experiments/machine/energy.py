"""Energy that the machine takes: Intel's and AMD's counters (RAPL), and the power sensors (INA) of boards.

Both tell of the whole package or board, with all that runs on it. Functions that read files take `root`, the folder
that stands for `/`.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from .proc import read_int, read_text

# Power between two readings is taken as their mean; a counter only has to be read before it wraps twice.
SENSOR_PERIOD_S, COUNTER_PERIOD_S = 0.1, 30.0


class EnergyCounter(NamedTuple):
    """A counter of energy that starts over: its file in uJ, and its range."""

    name: str
    path: Path
    range_uj: int


class Sensor(NamedTuple):
    """A sensor of power: the product of its files, each a whole number, times `unit_w`."""

    name: str
    paths: tuple[Path, ...]
    unit_w: float

    def watts(self) -> float | None:
        """Return the power now; None if the sensor does not answer."""
        product = self.unit_w
        for path in self.paths:
            value = read_int(path)
            if value is None:
                return None
            product *= value
        return product


def find_counters(root="/") -> list[Path]:
    """Return the RAPL zones that together are the sockets and their memory, each counted once.

    Cores and graphics are parts of their package; `psys` and the interface `intel-rapl-mmio` count packages again.
    """
    zones = sorted(Path(root, "sys/class/powercap").glob("intel-rapl:*"))
    names = {zone: read_text(zone / "name") or "" for zone in zones}
    return [zone for zone, name in names.items() if name.startswith("package") or name == "dram"]


def find_sensors(root="/") -> list[Sensor]:
    """Return the INA sensors of a board; of several rails the one that feeds it (`VDD_IN`, `5V_IN`), if named."""
    result: list[Sensor] = []
    for folder in sorted(Path(root, "sys/class/hwmon").glob("hwmon*")):
        chip = read_text(folder / "name") or ""
        if not chip.startswith("ina"):
            continue
        if (folder / "power1_input").exists():
            result.append(Sensor(read_text(folder / "power1_label") or chip, (folder / "power1_input",), 1e-6))
            continue
        for current in sorted(folder.glob("curr[0-9]_input")):
            voltage = folder / current.name.replace("curr", "in")
            label = read_text(folder / f"in{current.name[4]}_label")
            # Channels without a label are not connected; the chip's sum of shunt voltages has no voltage of its own.
            if label and "sum" not in label and voltage.exists():
                result.append(Sensor(label, (voltage, current), 1e-6))
    # The driver of older Jetson boards.
    for power in sorted(Path(root, "sys/bus/i2c/drivers/ina3221x").glob("*/iio:device*/in_power[0-9]_input")):
        label = read_text(power.with_name(f"rail_name_{power.name[8]}")) or power.name
        result.append(Sensor(label, (power,), 1e-3))
    result = [sensor for sensor in result if sensor.watts() is not None]
    whole = [sensor for sensor in result if re.search(r"(^|_)IN$", sensor.name)]
    return whole or result


class EnergyMeter:
    """Energy taken between entering and leaving, and meanwhile; a thread of its own reads what must be read often.

    Attributes
    ----------
    source : str
        What is read, such as "RAPL: package-0, dram" or "INA: VDD_IN".
    error : str or None
        Reason why there is no energy to be had.
    """

    def __init__(self, root="/"):
        zones = find_counters(root)
        hidden = [zone / "energy_uj" for zone in zones if read_int(zone / "energy_uj") is None]
        self.error: str | None = None
        self._counters = [
            EnergyCounter(read_text(z / "name") or z.name, z / "energy_uj", read_int(z / "max_energy_range_uj") or 0)
            for z in zones
        ]
        self._sensors = [] if zones else find_sensors(root)
        self.source = ", ".join(part.name for part in (*self._counters, *self._sensors))
        if hidden:
            self.error = f"{hidden[0]} may not be read; as root: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        elif self.source:
            self.source = f"{'RAPL' if zones else 'INA'}: {self.source}"
        else:
            self.error = "the kernel shows neither energy counters (powercap) nor INA sensors (hwmon)"
        self._joules = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EnergyMeter:
        if self.error is None:
            self._before, self._time = self._read(), time.monotonic()
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="energy", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self._thread is not None:
            self.joules()
            self._stop.set()
            self._thread.join()
            self._thread = None

    def joules(self) -> float | None:
        """Return the energy so far, over all that was entered and left; None where there is none to be had."""
        with self._lock:
            if self._thread is not None and self.error is None:
                self._advance()
            return None if self.error else self._joules

    def result(self, iterations: int) -> dict[str, Any]:
        """Return the field `energy` of a row: "joules", "joules_per_step", "source", and "error", a reason or null."""
        joules = self.joules()
        return {
            "joules": joules,
            "joules_per_step": None if joules is None else joules / iterations,
            "source": self.source,
            "error": self.error,
        }

    def _watch(self) -> None:
        while not self._stop.wait(SENSOR_PERIOD_S if self._sensors else COUNTER_PERIOD_S):
            self.joules()

    def _read(self) -> list[float]:
        """Return uJ of each counter and W of each sensor; a part that no longer answers ends the measurement."""
        values = [*(read_int(c.path) for c in self._counters), *(s.watts() for s in self._sensors)]
        for part, value in zip((*self._counters, *self._sensors), values, strict=True):
            if value is None:
                self.error = f"{part.name} stopped answering"
        return [0.0 if value is None else value for value in values]

    def _advance(self) -> None:
        now, moment = self._read(), time.monotonic()
        for counter, before, after in zip(self._counters, self._before, now, strict=False):
            self._joules += (after - before + (counter.range_uj if after < before else 0)) * 1e-6
        if self._sensors:
            self._joules += (moment - self._time) * (sum(self._before) + sum(now)) / 2
        self._before, self._time = now, moment


def energy_text(root="/") -> str:
    """Say what measures energy here, or why nothing does."""
    meter = EnergyMeter(root)
    return f"not available: {meter.error}" if meter.error else meter.source
