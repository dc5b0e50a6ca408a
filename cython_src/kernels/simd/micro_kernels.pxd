"""Cython's view of the table of inner loops, one for each instruction set."""

from ..attention.attention_loops cimport AttentionLoops
from ..convolution.channels_loops cimport ChannelsConvolutionLoops
from ..convolution.channels_winograd_loops cimport ChannelsWinogradLoops
from ..convolution.lanes_forms_loops cimport LanesFormsLoops
from ..convolution.lanes_loops cimport LanesConvolutionLoops
from ..convolution.lanes_winograd_loops cimport LanesWinogradLoops
from ..dense.dense_loops cimport DenseLoops
from ..depthwise.channels_loops cimport ChannelsDepthwiseLoops
from ..elementwise.channels_loops cimport ChannelsElementwiseLoops
from ..elementwise.relu_loops cimport ReluLoops
from ..elementwise.tokens_loops cimport TokenElementLoops
from ..linear.linear_loops cimport LinearLoops
from ..load.load_loops cimport LoadLoops
from ..loss.vocabulary_loops cimport VocabularyLoops
from ..maps.lanes_loops cimport LanesLoops
from ..norm.channels_loops cimport ChannelsNormLoops
from ..norm.tokens_loops cimport LayerNormLoops
from ..optimizer.optimizer_loops cimport OptimizerLoops
from ..pooling.channels_loops cimport ChannelsPoolingLoops
from ..pooling.lanes_loops cimport LanesPoolingLoops


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":
        const char *name
        const AttentionLoops *attention
        const ChannelsConvolutionLoops *channels_convolution
        const ChannelsDepthwiseLoops *channels_depthwise
        const ChannelsElementwiseLoops *channels_elementwise
        const ChannelsNormLoops *channels_norm
        const ChannelsPoolingLoops *channels_pooling
        const ChannelsWinogradLoops *channels_winograd
        const DenseLoops *dense
        const LanesLoops *lanes
        const LanesConvolutionLoops *lanes_convolution
        const LanesFormsLoops *lanes_forms
        const LanesPoolingLoops *lanes_pooling
        const LanesWinogradLoops *lanes_winograd
        const LayerNormLoops *layernorm
        const LinearLoops *linear
        const LoadLoops *load
        const OptimizerLoops *optimizer
        const ReluLoops *relu
        const TokenElementLoops *token_elements
        const VocabularyLoops *vocabulary
