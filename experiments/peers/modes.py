"""What PyTorch users on a CPU try."""

# As it is, channels in the innermost dimension, and compiled.
MODES = ("eager", "channels_last", "compile")
