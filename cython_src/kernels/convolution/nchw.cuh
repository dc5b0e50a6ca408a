/* Convolutions of 5 x 5 taps with images side by side. */
#ifndef FORKTASK_CONVOLUTION_NCHW_CUH
#define FORKTASK_CONVOLUTION_NCHW_CUH

#include "cython_src/kernels/maps/nchw.cuh"

#define TAPS 25

#endif
