/* Table of all inner loops, one for each instruction set. The loops lie in the folders of their concepts, in files
 * ..._loops.c that are compiled once per instruction set; the headers beside them describe what they do. Nothing here
 * includes them: the table holds addresses alone, and each Cython module declares the part of it that it uses. */
#ifndef FORKTASK_MICRO_KERNELS_H
#define FORKTASK_MICRO_KERNELS_H

/* TABLE(type, name): forktask_NAME, defined beside the loops. */
#define EACH_TABLE(TABLE)                           \
    TABLE(AttentionLoops, attention)                \
    TABLE(DenseLoops, dense)                        \
    TABLE(LayerNormLoops, layernorm)                \
    TABLE(LinearLoops, linear)                      \
    TABLE(LoadLoops, load)                          \
    TABLE(NchwLoops, nchw)                          \
    TABLE(Nchw16AlgorithmsLoops, nchw16_algorithms) \
    TABLE(Nchw16WinogradLoops, nchw16_winograd)     \
    TABLE(NchwConvolutionLoops, nchw_convolution)   \
    TABLE(NchwPoolingLoops, nchw_pooling)           \
    TABLE(NhwcConvolutionLoops, nhwc_convolution)   \
    TABLE(NhwcDepthwiseLoops, nhwc_depthwise)       \
    TABLE(NhwcElementwiseLoops, nhwc_elementwise)   \
    TABLE(NhwcNormLoops, nhwc_norm)                 \
    TABLE(NhwcPoolingLoops, nhwc_pooling)           \
    TABLE(NhwcWinogradLoops, nhwc_winograd)         \
    TABLE(OptimizerLoops, optimizer)                \
    TABLE(ReluLoops, relu)                          \
    TABLE(TokenElementLoops, token_elements)        \
    TABLE(VocabularyLoops, vocabulary)

typedef struct MicroKernels {
    const char *name;
#define MEMBER(type, table) const struct type *table;
    EACH_TABLE(MEMBER)
#undef MEMBER
} MicroKernels;

extern const MicroKernels forktask_micro_generic;
extern const MicroKernels forktask_micro_avx2;
extern const MicroKernels forktask_micro_avx512;
extern const MicroKernels forktask_micro_avx512_narrow;

#endif
