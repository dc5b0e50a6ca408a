"""Modes in which PyTorch is measured: those that its users try on a CPU."""

# PyTorch's default, channels in the innermost dimension, and compiled.
MODES = ("eager", "channels_last", "compile")
