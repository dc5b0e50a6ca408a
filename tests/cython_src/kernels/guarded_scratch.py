"""Scratch memory that shows whether a kernel keeps to it."""

import ctypes
import mmap

import numpy as np

ALIGNMENT = 64
GUARD_BYTES = 1 << 24  # further than an access goes astray; they take no memory
PROT_NONE = 0
LIBC = ctypes.CDLL(None, use_errno=True)


class GuardedScratch:
    """Scratch memory of one worker, right before memory that cannot be touched: reading or writing there is a SIGSEGV.

    Scratch memory is aligned, so up to 63 bytes lie between; they and what lies before it in its first page are spare:
    writing there shows in `spare_is`, and what a kernel reads there is what `fill` left.
    """

    def __init__(self):
        self.whole = np.empty(0, np.uint8)
        self.spare = ()

    def allocate(self, num_bytes):
        """Return the memory, as `Workers` takes it."""
        size = max(1, -(-num_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        everything = np.frombuffer(mmap.mmap(-1, size + GUARD_BYTES), np.uint8)
        address = ctypes.c_void_p(everything.ctypes.data + size)
        if LIBC.mprotect(address, ctypes.c_size_t(GUARD_BYTES), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
        start = size - -(-num_bytes // ALIGNMENT) * ALIGNMENT
        self.whole = everything[:size]
        self.spare = self.whole[:start], self.whole[start + num_bytes :]
        return everything[start : max(size, start + 1)]  # an address to fail at where nothing is asked for

    def fill(self, value):
        """Set every byte to `value`, spare ones too."""
        self.whole[:] = value

    def spare_is(self, value):
        """Return whether all spare bytes are `value`."""
        return all((part == value).all() for part in self.spare)
