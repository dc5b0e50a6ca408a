"""The CUDA sources compiled by NVRTC."""

import ctypes

import kinds

from forktask.cython_src.gpu import launches as gpu_launches


def compile_for(file: str, target: str, products: str = "") -> tuple[int, str, bytes]:
    """Return status, log, and machine code or PTX of a source file for a target such as sm_90."""
    library = kinds.load_nvrtc()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = gpu_launches.source(file, products=products).encode()
    library.nvrtcCreateProgram(ctypes.byref(program), text, file.encode(), 0, None, None)
    say = ["--ptxas-options=-v"] if target.startswith("sm_") else []
    options = [option.encode() for option in (*gpu_launches.COMPILE_OPTIONS, f"-arch={target}", *say)]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    kind = "CUBIN" if target.startswith("sm_") else "PTX"
    getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind}")(program, code)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode(), code.raw
