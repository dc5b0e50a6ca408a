/* Codes of activations, in C and CUDA; 0: none. maps/nhwc.py::ACTIVATIONS names them for Python. */
#ifndef FORKTASK_ACTIVATION_CODES_H
#define FORKTASK_ACTIVATION_CODES_H

enum { ACTIVATION_RELU = 1, ACTIVATION_RELU6, ACTIVATION_GELU };

#endif
