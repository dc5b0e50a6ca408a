"""Fixtures of the tests of the task runtime."""

import pytest
from tasking.hash_kernels import register_hash_kernels


@pytest.fixture(scope="session")
def hash_kernel():
    """The compiled test kernels; skips where there is no C compiler."""
    if not register_hash_kernels():
        pytest.skip("needs a C compiler for its test kernel")
