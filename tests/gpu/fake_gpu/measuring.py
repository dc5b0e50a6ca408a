"""A measuring process whose GPU is the fake device: `python measuring.py MODULE < job.json`."""

import runpy
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from gpu.fake_gpu.device import FakeDevice

from forktask.cython_src.gpu import device as gpu_device

DEVICE = FakeDevice(clock=time.monotonic)
gpu_device.default_gpu = lambda: DEVICE
runpy.run_module(sys.argv[1], run_name="__main__")
