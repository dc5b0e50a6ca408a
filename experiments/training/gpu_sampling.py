"""Memory and utilisation of a GPU over time, as NVIDIA's management library reports them.

Utilisation means that some kernel ran during the library's last period of up to a second; it is no efficiency.
"""

from __future__ import annotations

import threading
import time

PERIOD_S = 0.25
LEAST_SAMPLES = 4  # of which a mean is taken: an epoch of some 10 ms has one, of any moment


class GpuSampler:
    """Context manager, a thread that samples a GPU meanwhile; without the library it says so in `problem`.

    The library is pynvml (package nvidia-ml-py) by default.

    Attributes
    ----------
    samples : list of (float, int, float)
        Seconds since the sampler was made, bytes of memory in use on the GPU, utilisation in [0, 1].
    problem : str
        Reason why there are no samples; empty if there are.
    """

    def __init__(self, period_s: float = PERIOD_S, library=None):
        self.samples: list[tuple[float, int, float]] = []
        self.problem = ""
        self._period_s, self._library = period_s, library
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._begin = time.perf_counter()
        try:
            if library is None:
                import pynvml

                self._library = pynvml
            self._library.nvmlInit()
            self._handle = self._library.nvmlDeviceGetHandleByIndex(0)
        except ImportError:
            self.problem = "GPU memory and utilisation are not sampled: pip install nvidia-ml-py"
        except Exception as error:  # The library's NVMLError cannot be named before it is imported.
            self.problem = f"GPU memory and utilisation are not sampled: {error}"

    def __enter__(self) -> GpuSampler:
        self._first = len(self.samples)
        if not self.problem:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="gpu sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        """End sampling; at least one sample was taken."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            try:
                memory = self._library.nvmlDeviceGetMemoryInfo(self._handle).used
                utilisation = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            except self._library.NVMLError as error:
                self.problem = f"sampling of the GPU ended: {error}"
                return
            self.samples.append((time.perf_counter() - self._begin, int(memory), utilisation))
            if self._stop.wait(self._period_s):
                return

    def summary(self) -> dict[str, float]:
        """Return the largest memory and mean utilisation since the sampler was last entered, of enough samples."""
        part = self.samples[self._first :]
        result: dict[str, float] = {"gpu_memory_bytes": max(memory for _, memory, _ in part)} if part else {}
        if len(part) >= LEAST_SAMPLES:
            result["gpu_utilisation"] = sum(utilisation for *_, utilisation in part) / len(part)
        return result
