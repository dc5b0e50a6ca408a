"""Kernels of tests in Python: what they read and write can be seen."""

from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register


def kernel(name, operands, bounds="", integers="", reals=""):
    """Register `f(operands, attributes, bounds, iteration)` as a kernel; names are given as words of a string."""

    def decorate(function):
        names = (tuple(words.split()) for words in (operands, integers, reals, bounds))
        register(KernelSpec(name, *names, reference=function))
        return function

    return decorate
