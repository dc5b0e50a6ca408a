/* Table of all inner loops, see micro_kernels.h. Compiled once per instruction set. */
#include "micro_kernels.h"
#include "vectors.h"

#define DECLARE(type, table) extern const struct type ISA_SYMBOL(forktask_##table);
EACH_TABLE(DECLARE)

#define ENTRY(type, table) .table = &ISA_SYMBOL(forktask_##table),
const MicroKernels ISA_SYMBOL(forktask_micro) = {.name = ISA_NAME, EACH_TABLE(ENTRY)};
