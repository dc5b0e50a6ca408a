"""Fixtures of the tests of the task runtime."""

import pytest
from tasking.hash_kernels import register_hash_kernels


def pytest_itemcollected(item):
    """Mark tests that use the compiled test kernels."""
    if "hash_kernel" in item.fixturenames:
        item.add_marker("cc")


@pytest.fixture(scope="session")
def hash_kernel():
    """The compiled test kernels."""
    register_hash_kernels()
