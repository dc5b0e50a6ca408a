/* Table of all inner loops, one for each instruction set. The loops lie in the folders of their concepts, in files
 * ..._loops.c that are compiled once per instruction set; the headers beside them describe what they do. Nothing here
 * includes them: the table holds addresses alone, and each Cython module declares the part of it that it uses. */
#ifndef FORKTASK_MICRO_KERNELS_H
#define FORKTASK_MICRO_KERNELS_H

typedef struct MicroKernels {
    const char *name;
    const struct AttentionLoops *attention;
    const struct ChannelsConvolutionLoops *channels_convolution;
    const struct ChannelsDepthwiseLoops *channels_depthwise;
    const struct ChannelsElementwiseLoops *channels_elementwise;
    const struct ChannelsNormLoops *channels_norm;
    const struct ChannelsPoolingLoops *channels_pooling;
    const struct ChannelsWinogradLoops *channels_winograd;
    const struct DenseLoops *dense;
    const struct LanesLoops *lanes;
    const struct LanesConvolutionLoops *lanes_convolution;
    const struct LanesAlgorithmsLoops *lanes_algorithms;
    const struct LanesPoolingLoops *lanes_pooling;
    const struct LanesWinogradLoops *lanes_winograd;
    const struct LayerNormLoops *layernorm;
    const struct LinearLoops *linear;
    const struct LoadLoops *load;
    const struct OptimizerLoops *optimizer;
    const struct ReluLoops *relu;
    const struct TokenElementLoops *token_elements;
    const struct VocabularyLoops *vocabulary;
} MicroKernels;

extern const MicroKernels forktask_micro_generic;
extern const MicroKernels forktask_micro_avx2;
extern const MicroKernels forktask_micro_avx512;

#endif
