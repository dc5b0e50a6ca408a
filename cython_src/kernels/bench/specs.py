"""What kernels of work without a network get, by name; see `KernelSpec`."""

from ..interface.arguments import takes

KERNELS = {
    "hash_chain": takes("out in", "work fail_iteration fail_index", bounds="i start stop"),
    "replica": takes((), "kernel", bounds="work"),
    "walk": takes("memory", "pages page_numbers", bounds="part"),
}
