"""CUDA kernels of convolutions with the channels in the lanes: run by the CPU, they pass the tests of the CPU's."""

import pytest
from gpu.fake_gpu import emulator

from cython_src.kernels import kernel_testing
from cython_src.kernels.convolution import test_nhwc
from forktask.cython_src.gpu import launches as gpu_launches


@pytest.mark.cxx
def test_convolutions_of_any_geometry(monkeypatch):
    """Check packing, forward pass and both gradients, with every size of tile, against the NumPy forms in float64."""
    launched, launch, tiles = set(), emulator.launch, (gpu_launches.PRODUCT_TILES, gpu_launches.GRADIENT_TILES)
    monkeypatch.setattr(emulator, "launch", lambda symbol, *rest: launched.add(symbol) or launch(symbol, *rest))
    monkeypatch.setattr(kernel_testing, "INSTRUCTION_SETS", ("cuda",))
    monkeypatch.setattr(gpu_launches, "THREADS_WANTED", 0)
    for first in (0, 1):
        monkeypatch.setattr(gpu_launches, "PRODUCT_TILES", tiles[0][first:])
        monkeypatch.setattr(gpu_launches, "GRADIENT_TILES", tiles[1][first:])
        # The last one has channels enough for every tile.
        for case in (*map(test_nhwc.random_case, range(12)), test_nhwc.Case(1, 1, 36, 72, 7, 7, 1, 1, 0, 1)):
            test_nhwc.check_case(case, "direct")
    forms = {("forward", "backward_data"): tiles[0], ("backward_weights",): tiles[1]}
    assert {f"nhwc_conv_{name}_{m}x{n}" for names in forms for name in names for m, n in forms[names]} <= launched
