"""GELU in its tanh form, in NumPy: gelu(x) = x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3)."""

from __future__ import annotations

import numpy as np

SCALE, CUBIC = np.sqrt(2 / np.pi), 0.044715


def gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU of each element."""
    return 0.5 * x * (1 + np.tanh(SCALE * (x + CUBIC * x**3)))


def gelu_derivative(x: np.ndarray) -> np.ndarray:
    """Return the derivative of GELU at each element."""
    tanh = np.tanh(SCALE * (x + CUBIC * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * SCALE * (1 + 3 * CUBIC * x**2)
