/* Float32 products as six of bfloat16, by Intel's AMX or, with the same bits, by any processor.
 *
 * A number is cut by truncation into three bfloat16 of 8 bits each, which lose nothing but what is denormal. Of the nine
 * products of two numbers the six largest are summed in float32, smallest first, in the order of TDPBF16PS: of each 32
 * terms the first 16 and the last 16 in a chain of fused multiply-adds that begins at zero, then the sum of both chains
 * is added to the result. Denormals count as zero, as on every thread that runs blocks. The order depends on the number
 * of terms alone.
 *
 * Factors are tiles of 16 x 16 words, two bfloat16 each: terms i and i + 16. The first factor's have a row for each row
 * of the result and a word for each pair of terms, the second's a row for each pair and a word for each column. The tiles
 * of the three parts lie one after the other, then those of the next 32 terms, then those of the next 16 rows or columns.
 * Include after tiles.h. */
#ifndef FORKTASK_SIX_PRODUCTS_H
#define FORKTASK_SIX_PRODUCTS_H

#include "linear_loops.h"

#define SIX_TILE 256 /* words */
#define SIX_STEP (3 * SIX_TILE)

typedef uint32_t Word __attribute__((may_alias));
typedef uint32_t Words __attribute__((vector_size(VL * 4)));
#define UPPER 0xffff0000u

/* Parts of a tile; the first word's numbers lie at `in` and `in` + far, the next row `row` floats later. */
INLINE void cut_tile(const float *in, ptrdiff_t row, ptrdiff_t far, float *out)
{
    for (int r = 0; r < 16; r++, in += row, out += 16)
        for (int n = 0; n < 16; n += VL) {
            Vec low = load(in + n), high = load(in + far + n);
            UNROLL for (int part = 0; part < 3; part++)
            {
                store(out + part * SIX_TILE + n, (Vec)(((Words)high & UPPER) | ((Words)low >> 16)));
                high -= (Vec)((Words)high & UPPER), low -= (Vec)((Words)low & UPPER);
            }
        }
}

/* Tiles of a factor with `lines` rows or columns, zero past the last line and the last term: of the first factor where
 * `first`, a constant. Neighbours in memory are the terms of a line, or, where `by_terms`, the lines of a term. */
INLINE void cut_factor(const float *from, ptrdiff_t row, const int by_terms, const int first, int lines, int terms,
                       float *out)
{
    const int steps = (terms + 31) / 32, strips = (lines + 15) / 16;
    float part[512] __attribute__((aligned(64))), turned[512] __attribute__((aligned(64)));
    for (int i = 0; i < steps * strips; i++) {
        const int n = 16 * (by_terms ? i % strips : i / steps), k = 32 * (by_terms ? i / strips : i % steps);
        const int height = by_terms ? 32 : 16, width = 48 - height;
        const int rows = smaller(height, by_terms ? terms - k : lines - n);
        const int columns = smaller(width, by_terms ? lines - n : terms - k);
        const float *in = from + (by_terms ? k * row + n : n * row + k);
        ptrdiff_t in_row = row;
        if (rows < height || columns < width) {
            memset(part, 0, sizeof(part));
            for (int r = 0; r < rows; r++)
                memcpy(part + r * width, in + r * row, columns * sizeof(float));
            in = part, in_row = width;
        }
        if (by_terms == first) {
            for (int r = 0; r < height; r += VL)
                transpose_strip(in + r * in_row, in_row, VL, width, turned + r, height);
            in = turned, in_row = height;
        }
        cut_tile(in, in_row, first ? 16 : 16 * in_row, out + ((ptrdiff_t)n / 16 * steps + k / 32) * SIX_STEP);
    }
}

/* Two strips of tiles of each factor, `strip` words apart, and 32 x 32 sums. */
typedef struct SixTiles {
    const float *a, *b;
    float *c;
    ptrdiff_t strip, c_row;
    int steps, add;
    Fetch *ahead;
} SixTiles;

#if MICRO_ISA == AVX512 && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))

/* Has this processor AMX, and does the system let this process use it? Any thread may call this: the result is kept. */
static int amx_usable(void)
{
    static int known; /* 1: no, 2: yes */
    int state = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (state == 0) {
        unsigned a, b, c, d = 0;
        const unsigned needed = 1u << 22 | 1u << 24; /* AMX-BF16, AMX-TILE */
        const int present = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed;
        /* ARCH_REQ_XCOMP_PERM for the tiles */
        state = 1 + (present && syscall(SYS_arch_prctl, 0x1023, 18) == 0);
        __atomic_store_n(&known, state, __ATOMIC_RELAXED);
    }
    return state == 2;
}

static AMX void amx_begin(void)
{
    /* Palette 1: eight tiles of 16 rows of 64 bytes. */
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}
static AMX void amx_end(void)
{
    _tile_release();
}

#define LOAD_PAIR(TILE, NEXT, FROM, FURTHER, ROW) \
    _tile_loadd(TILE, FROM, ROW);                 \
    _tile_loadd(NEXT, (FROM) + (FURTHER), ROW)
#define LOAD_A(PART) LOAD_PAIR(4, 5, a + (PART) * SIX_TILE, strip, 64)
#define LOAD_B(PART) LOAD_PAIR(6, 7, b + (PART) * SIX_TILE, strip, 64)
#define MULTIPLY             \
    _tile_dpbf16ps(0, 4, 6); \
    _tile_dpbf16ps(1, 4, 7); \
    _tile_dpbf16ps(2, 5, 6); \
    _tile_dpbf16ps(3, 5, 7)

/* The compiler must know that tiles are read from memory and written to it: GCC's loads and stores do not say so. */
#define TILES_IN_MEMORY __asm__ volatile("" : : : "memory")

static __attribute__((noinline)) AMX void six_by_amx(const SixTiles *t)
{
    const float *a = t->a, *b = t->b;
    float *c = t->c, *below = c + 16 * t->c_row;
    const ptrdiff_t strip = t->strip, c_row = 4 * t->c_row;
    TILES_IN_MEMORY;
    if (t->add) {
        LOAD_PAIR(0, 1, c, 16, c_row);
        LOAD_PAIR(2, 3, below, 16, c_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int step = 0; step < t->steps; step++, a += SIX_STEP, b += SIX_STEP) {
        for (int i = 0; i < 8; i++)
            fetch_line(t->ahead);
        LOAD_A(2);
        LOAD_B(0);
        MULTIPLY;
        LOAD_A(1);
        MULTIPLY;
        LOAD_B(1);
        MULTIPLY;
        LOAD_A(0);
        MULTIPLY;
        LOAD_B(2);
        MULTIPLY;
        LOAD_B(0);
        MULTIPLY;
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + 16, c_row);
    _tile_stored(2, below, c_row);
    _tile_stored(3, below + 16, c_row);
    TILES_IN_MEMORY;
}
#else
static int amx_usable(void)
{
    return 0;
}
static void amx_begin(void)
{
}
static void amx_end(void)
{
}
static void six_by_amx(const SixTiles *t)
{
}
#endif

/* a b + c, rounded once. */
INLINE Vec fused(Vec a, Vec b, Vec c)
{
    for (int i = 0; i < BY_ISA(VL, 0, 0, 0); i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return BY_ISA(c, a * b + c, a * b + c, a * b + c);
}

/* One row of 16 sums as six_by_amx() makes them. */
static void six_of_row(const Word *a, const float *b, float *c, int steps, int add)
{
    static const uint8_t order[6][2] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
    for (int n = 0; n < 16; n += VL) {
        Vec sum = add ? load(c + n) : (Vec){0};
        for (int i = 0; i < 6 * steps; i++) {
            const ptrdiff_t step = (ptrdiff_t)(i / 6) * SIX_STEP;
            const Word *left = a + step + order[i % 6][0] * SIX_TILE;
            const float *right = b + step + order[i % 6][1] * SIX_TILE + n;
            Vec first = {0}, last = {0};
            for (int k = 0; k < 16; k++) {
                const Words x = left[k] - (Words){0}, y = (Words)load(right + 16 * k);
                first = fused((Vec)(x << 16), (Vec)(y << 16), first);
                last = fused((Vec)(x & UPPER), (Vec)(y & UPPER), last);
            }
            sum += first + last;
        }
        store(c + n, sum);
    }
}

static void six_by_lanes(const SixTiles *t)
{
    for (int r = 0; r < 32; r++)
        for (int half = 0; half < 2; half++)
            six_of_row((const Word *)t->a + r / 16 * t->strip + r % 16 * 16, t->b + half * t->strip,
                       t->c + r * t->c_row + 16 * half, t->steps, t->add);
}

#endif
