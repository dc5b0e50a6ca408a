"""Layouts: how tensors lie in memory, how loops are cut, and which kernels compute them; see `state.Layout`."""
