"""Random maps and blocks of kernels with the channels in the lanes, and their comparison with the NumPy forms."""

import numpy as np
from cython_src.kernels.kernel_testing import EPSILON, against_float64, empty_map
from hypothesis import settings
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.nhwc import NhwcMap
from forktask.cython_src.plan.builder import block_grid, ranges

FEW = settings(max_examples=25)
sizes = st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 9), st.integers(1, 9))
halos = st.integers(0, 2)
seeds = st.integers(0, 2**32 - 1)


def random_map(rng, m, mean=0.0):
    """Random interior; halo and padding channels are zero."""
    array = np.zeros(m.shape, np.float32)
    h = m.halo
    part = array[:, h : h + m.height, h : h + m.width, : m.channels]
    part[...] = rng.standard_normal(part.shape) + mean
    return array


def vector(rng, m, low=0.5, high=2.0):
    """Values for each channel, zero for padding channels."""
    values = np.zeros(m.pitch, np.float32)
    values[: m.channels] = rng.uniform(low, high, m.channels)
    return values


def boxes(rng, m, channels=True):
    """Blocks (n, y, c) of a map that cut each dimension at a random size; channels at whole units."""
    step = 16 * int(rng.integers(1, m.pitch // 16 + 1)) if channels else m.channels
    cut = [ranges(n, int(rng.integers(1, n + 1))) for n in (m.batch, m.height)] + [ranges(m.channels, step)]
    return [(*n, *y, *c) for n, y, c in block_grid(*cut)]


def numbered(blocks):
    """Blocks (n, y) with the number of their partial."""
    return [(*b[:4], i) for i, b in enumerate(blocks)]


def compare(kernel, operands, outputs, attributes, blocks, tolerance, iteration=0):
    """Check every instruction set against float64. The tolerance counts rounding errors of the largest element."""
    results = {}
    for name, got, expected, what in against_float64(kernel, operands, outputs, attributes, blocks, iteration):
        size, results[name] = np.nanmax(np.abs(expected), initial=1.0), expected
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * EPSILON * size, err_msg=what)
    return results


def maps(size, *own_halos):
    batch, channels, height, width = size
    return [NhwcMap(f"map{i}", batch, channels, height, width, halo) for i, halo in enumerate(own_halos)]


@st.composite
def window_cases(draw, largest_padding):
    """Maps of a window operation, its attributes and a generator of random numbers."""
    kernel = draw(st.sampled_from([1, 2, 3, 3, 3, 5, 7]))
    stride = draw(st.sampled_from([1, 2, 2, 3]))
    padding = draw(st.integers(0, largest_padding(kernel)))
    batch, channels = draw(st.integers(1, 2)), draw(st.integers(1, 150))
    height, width = (draw(st.integers(max(1, kernel - 2 * padding), 12)) for _ in range(2))
    small = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    large = NhwcMap("large", batch, channels, height, width, draw(st.integers(0, 3)))
    return (
        large,
        NhwcMap("small", batch, channels, *small, draw(st.integers(0, 2))),
        {"kernel": kernel, "stride": stride, "padding": padding},
        draw(st.sampled_from([0, 1])),
        np.random.default_rng(draw(seeds)),
    )


def gradient_target(rng, m, accumulate):
    return random_map(rng, m) if accumulate else empty_map(m)
