/* Table of all inner loops, see micro_kernels.h. Compiled once per instruction set. */
#include "micro_kernels.h"
#include "vectors.h"

#define DECLARE(type, table) extern const struct type ISA_SYMBOL(forktask_##table);
EACH_TABLE(DECLARE)

#define ENTRY(type, table) .table = &ISA_SYMBOL(forktask_##table),
const MicroKernels ISA_SYMBOL(forktask_micro) = {.name = ISA_NAME, EACH_TABLE(ENTRY)};

#if MICRO_ISA == AVX512
/* With tiles of 12 x 32 alone: which tile is faster differs between processors. The later initialiser counts. */
extern const struct LinearLoops ISA_SYMBOL(forktask_linear_narrow);
#pragma GCC diagnostic ignored "-Woverride-init"
const MicroKernels forktask_micro_avx512_narrow = {.name = "avx512_narrow",
                                                   EACH_TABLE(ENTRY).linear = &ISA_SYMBOL(forktask_linear_narrow)};
#endif
