/* Table of all inner loops, see micro_kernels.h. Compiled once per instruction set. */
#include "micro_kernels.h"
#include "vectors.h"

extern const struct AttentionLoops ISA_SYMBOL(forktask_attention);
extern const struct ChannelsConvolutionLoops ISA_SYMBOL(forktask_channels_convolution);
extern const struct ChannelsDepthwiseLoops ISA_SYMBOL(forktask_channels_depthwise);
extern const struct ChannelsElementwiseLoops ISA_SYMBOL(forktask_channels_elementwise);
extern const struct ChannelsNormLoops ISA_SYMBOL(forktask_channels_norm);
extern const struct ChannelsPoolingLoops ISA_SYMBOL(forktask_channels_pooling);
extern const struct ChannelsWinogradLoops ISA_SYMBOL(forktask_channels_winograd);
extern const struct DenseLoops ISA_SYMBOL(forktask_dense);
extern const struct LanesLoops ISA_SYMBOL(forktask_lanes);
extern const struct LanesConvolutionLoops ISA_SYMBOL(forktask_lanes_convolution);
extern const struct LanesAlgorithmsLoops ISA_SYMBOL(forktask_lanes_algorithms);
extern const struct LanesPoolingLoops ISA_SYMBOL(forktask_lanes_pooling);
extern const struct LanesWinogradLoops ISA_SYMBOL(forktask_lanes_winograd);
extern const struct LayerNormLoops ISA_SYMBOL(forktask_layernorm);
extern const struct LinearLoops ISA_SYMBOL(forktask_linear);
extern const struct LoadLoops ISA_SYMBOL(forktask_load);
extern const struct OptimizerLoops ISA_SYMBOL(forktask_optimizer);
extern const struct ReluLoops ISA_SYMBOL(forktask_relu);
extern const struct TokenElementLoops ISA_SYMBOL(forktask_token_elements);
extern const struct VocabularyLoops ISA_SYMBOL(forktask_vocabulary);

const MicroKernels ISA_SYMBOL(forktask_micro) = {
    .name = ISA_NAME,
    .attention = &ISA_SYMBOL(forktask_attention),
    .channels_convolution = &ISA_SYMBOL(forktask_channels_convolution),
    .channels_depthwise = &ISA_SYMBOL(forktask_channels_depthwise),
    .channels_elementwise = &ISA_SYMBOL(forktask_channels_elementwise),
    .channels_norm = &ISA_SYMBOL(forktask_channels_norm),
    .channels_pooling = &ISA_SYMBOL(forktask_channels_pooling),
    .channels_winograd = &ISA_SYMBOL(forktask_channels_winograd),
    .dense = &ISA_SYMBOL(forktask_dense),
    .lanes = &ISA_SYMBOL(forktask_lanes),
    .lanes_convolution = &ISA_SYMBOL(forktask_lanes_convolution),
    .lanes_algorithms = &ISA_SYMBOL(forktask_lanes_algorithms),
    .lanes_pooling = &ISA_SYMBOL(forktask_lanes_pooling),
    .lanes_winograd = &ISA_SYMBOL(forktask_lanes_winograd),
    .layernorm = &ISA_SYMBOL(forktask_layernorm),
    .linear = &ISA_SYMBOL(forktask_linear),
    .load = &ISA_SYMBOL(forktask_load),
    .optimizer = &ISA_SYMBOL(forktask_optimizer),
    .relu = &ISA_SYMBOL(forktask_relu),
    .token_elements = &ISA_SYMBOL(forktask_token_elements),
    .vocabulary = &ISA_SYMBOL(forktask_vocabulary),
};
