"""Activations in NumPy, by their code: places in `ACTIVATIONS`."""

from __future__ import annotations

import numpy as np

from ..interface.arguments import ACTIVATIONS

SCALE, CUBIC = np.sqrt(2 / np.pi), 0.044715


def gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU in its tanh form: x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return 0.5 * x * (1 + np.tanh(SCALE * (x + CUBIC * x**3)))


def gelu_derivative(x: np.ndarray) -> np.ndarray:
    """Return the derivative of GELU at each element."""
    tanh = np.tanh(SCALE * (x + CUBIC * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * SCALE * (1 + 3 * CUBIC * x**2)


def activate(x: np.ndarray, activation: int) -> np.ndarray:
    """Return the activation of each element; a NaN stays one."""
    match ACTIVATIONS[activation]:
        case "gelu":
            return gelu(x)
        case "sigmoid":
            return 0.5 * (1 + np.tanh(0.5 * x))
        case "relu":
            return np.where(x <= 0, 0, x)
        case "relu6":
            return np.where(x <= 0, 0, np.where(x >= 6, 6, x))
    return x


def passes(y: np.ndarray, activation: int) -> np.ndarray:
    """Return where ReLU or ReLU6 passes the gradient, from its result or its argument."""
    if activation == 0:
        return np.ones(y.shape, dtype=bool)
    return (y > 0) & (y < 6) if ACTIVATIONS[activation] == "relu6" else y > 0


def activation_gradient(dy: np.ndarray, value: np.ndarray, activation: int) -> np.ndarray:
    """Return the gradient before an activation, by the argument of GELU, by the result of others."""
    match ACTIVATIONS[activation]:
        case "gelu":
            return dy * gelu_derivative(value)
        case "sigmoid":
            return dy * (value * (1 - value))
    return np.where(passes(value, activation), dy, 0)
