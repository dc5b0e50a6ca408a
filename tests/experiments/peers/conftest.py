"""Tests of modules of PyTorch need it to be read at all."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_from_torch.py"]
