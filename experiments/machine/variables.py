"""Environment variables that change how fast something runs."""

from __future__ import annotations

import os

# Variables that change how fast something runs. Of these, measuring processes get from outside only FORKTASK_ISA and
# those of memory; any other use of NumPy, PyTorch or OpenMP gets all. "cripples": slows a library down or removes
# threads from it, so that comparisons with it are false; "placement": competes with the pinning of executors;
# "threads": sets numbers of threads; "spin": tells idle threads what to do; "kernels": chooses kernels of this package;
# "memory": another allocator, or its settings.
VARIABLES = {
    "OPENBLAS_CORETYPE": ("cripples", "OpenBLAS uses the kernels of this CPU model, often half as fast; acts at load"),
    "OPENBLAS_L2_SIZE": ("cripples", "OpenBLAS blocks for this L2 size instead of the real one"),
    "OPENBLAS_BLOCK_FACTOR": ("cripples", "OpenBLAS changes its cache blocking"),
    "MKL_DEBUG_CPU_TYPE": ("cripples", "MKL uses the kernels of another CPU type"),
    "MKL_ENABLE_INSTRUCTIONS": ("cripples", "MKL uses no wider instruction set than this"),
    "MKL_CBWR": ("cripples", "MKL trades speed for reproducible sums"),
    "ONEDNN_MAX_CPU_ISA": ("cripples", "oneDNN (PyTorch) uses no wider instruction set than this"),
    "DNNL_MAX_CPU_ISA": ("cripples", "oneDNN (PyTorch) uses no wider instruction set than this"),
    "ATEN_CPU_CAPABILITY": ("cripples", "PyTorch uses no wider instruction set than this"),
    "BLIS_ARCH_TYPE": ("cripples", "BLIS uses the kernels of this CPU model"),
    "NPY_DISABLE_CPU_FEATURES": ("cripples", "NumPy leaves these instruction sets unused"),
    "OMP_THREAD_LIMIT": ("cripples", "OpenMP gives no team more threads than this, silently"),
    "OMP_DYNAMIC": ("cripples", "OpenMP may give a team fewer threads than requested"),
    "OMP_PROC_BIND": ("placement", "OpenMP binds its threads itself"),
    "OMP_PLACES": ("placement", "places that OpenMP binds its threads to"),
    "GOMP_CPU_AFFINITY": ("placement", "libgomp binds its threads to these CPUs"),
    "KMP_AFFINITY": ("placement", "LLVM's and Intel's OpenMP bind their threads"),
    "OMP_NUM_THREADS": ("threads", "default team size; forktask always requests its own number"),
    "OPENBLAS_NUM_THREADS": ("threads", "threads inside one BLAS call"),
    "GOTO_NUM_THREADS": ("threads", "threads inside one OpenBLAS call"),
    "MKL_NUM_THREADS": ("threads", "threads inside one MKL call"),
    "MKL_DYNAMIC": ("threads", "MKL may use fewer threads than set"),
    "BLIS_NUM_THREADS": ("threads", "threads inside one BLIS call"),
    "NUMEXPR_NUM_THREADS": ("threads", "threads of NumExpr"),
    "OMP_MAX_ACTIVE_LEVELS": ("threads", "how deep OpenMP regions may nest"),
    "OMP_SCHEDULE": ("threads", "schedule of loops that say `runtime`; forktask names its own"),
    "OMP_STACKSIZE": ("threads", "stack of each OpenMP thread"),
    "OMP_WAIT_POLICY": ("spin", "whether idle OpenMP threads spin (active) or sleep (passive)"),
    "GOMP_SPINCOUNT": ("spin", "how long idle libgomp threads spin before they sleep"),
    "KMP_BLOCKTIME": ("spin", "how long idle LLVM OpenMP threads spin, ms"),
    "KMP_LIBRARY": ("spin", "waiting mode of LLVM's and Intel's OpenMP"),
    "LD_PRELOAD": ("memory", "libraries that come before others, such as an allocator"),
    "GLIBC_TUNABLES": ("memory", "settings of the C library, such as its allocator's"),
    "FORKTASK_ISA": ("kernels", "forktask uses the kernels of this instruction set"),
}
VARIABLE_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "ONEDNN_", "DNNL_")
MEMORY_PREFIXES = ("MALLOC_", "TCMALLOC_")
OPENMP_LIBRARIES = ("libgomp", "libomp", "libiomp")


def read_variables(variables=None) -> list[dict]:
    """Return environment variables that change threads or kernels: name, value, kind (see VARIABLES), effect."""
    variables = os.environ if variables is None else variables
    result = []
    for name in sorted(variables):
        if name in VARIABLES or name.startswith((*VARIABLE_PREFIXES, *MEMORY_PREFIXES)):
            kind, effect = VARIABLES.get(name, ("unknown", "read by a library of threads or kernels; effect not known"))
            if name.startswith(MEMORY_PREFIXES):
                kind, effect = "memory", "settings of a memory allocator"
            value = variables[name]
            if name == "OMP_DYNAMIC" and value.strip().lower() == "false":
                kind = "threads"  # the default, stated explicitly
            if name == "OMP_MAX_ACTIVE_LEVELS" and value.strip() == "0":
                kind, effect = "cripples", "OpenMP runs each team with one thread"
            result.append({"name": name, "value": value, "kind": kind, "effect": effect})
    return result
