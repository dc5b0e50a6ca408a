/* Attention in tiles: formulas and operands as in kernels/attention/attention.pyx, the order of sums as in
 * kernels/attention/attention_loops.h.
 *
 * A CUDA block owns 64 tokens (queries forward, keys or queries backward) of one head of one sample and 64 features of
 * its result, and walks along the tiles of the other tokens: a tile of scores in registers, its powers in shared memory,
 * from where they are multiplied with values. Larger heads take several CUDA blocks, which compute the scores anew.
 * Tiles over the summed tokens lie at fixed multiples of 64 of the sample, those over the keys of a block backward from
 * its first key on; what is masked adds an exact zero.
 *
 * Dao, Fu, Ermon, Rudra, Re: FlashAttention (NeurIPS 2022), sections 3.1 and B; backward some CUDA blocks have the keys
 * of a block, and others all queries that see them, so that no two CUDA blocks add to one place. */

#include "cython_src/kernels/attention/grid_sizes.cuh" /* ATTENTION_TILE, written from SIZES of grids.py */
#include "cython_src/kernels/linear/tiles.cuh"

#define LEAST (-1.0e38f) /* stands for minus infinity: differences of it are no NaN */

/* A thread's numbers of a tile: scores, sums along the features of a head; and results, along tokens. */
typedef Tile<ATTENTION_TILE / THREAD_ROWS, ATTENTION_TILE / THREAD_COLUMNS, true, true> Scores;
typedef Tile<ATTENTION_TILE / THREAD_ROWS, ATTENTION_TILE / THREAD_COLUMNS, false, false> Results;

#define ATTENTION_PITCH Results::Left::PITCH /* of powers in shared memory */
#define ATTENTION_STEPS max(Scores::FLOATS, STAGES *Results::Right::FLOATS)

/* What a CUDA block computes. */
struct Part {
    bool exists;
    int n, h, size; /* sample, head, features of a head */
    int feature;    /* the first of the tile */
    int start, stop, sequence;
    bool causal, by_query; /* by_query: of CUDA blocks backward, one with queries */
    int row, qkv_row;      /* strides of tokens */
    long long at, qkv_at;  /* of the sample's first token, of the head's first feature */
    long long token;       /* of the sample's first token in logsumexp and delta */
    float scale;
};

/* Tiles of a block's tokens; backward those of its keys, then those of the queries that see them. */
template <typename Args>
__device__ inline Part part_of(const Args &a, bool backward)
{
    const auto &b = block_bounds(a);
    const int features = a.features;
    Part p;
    p.sequence = a.sequence;
    p.causal = a.causal;
    p.size = features / a.heads;
    const int tiles = divide_up(b.t1 - b.t0, ATTENTION_TILE), pieces = divide_up(p.size, ATTENTION_TILE),
              heads = b.h1 - b.h0, first = p.causal ? b.t0 : 0,
              further = backward ? divide_up(p.sequence - first, ATTENTION_TILE) : 0;
    int i = (int)blockIdx.x;
    const int tile = i % (tiles + further);
    p.by_query = backward && tile >= tiles; /* forward the compiler knows that there is none, and saves registers */
    p.start = p.by_query ? first + (tile - tiles) * ATTENTION_TILE : b.t0 + tile * ATTENTION_TILE;
    p.stop = min(p.start + ATTENTION_TILE, p.by_query ? p.sequence : b.t1);
    i /= tiles + further;
    p.feature = i % pieces * ATTENTION_TILE;
    i /= pieces;
    p.h = b.h0 + i % heads;
    p.n = b.n0 + i / heads;
    p.exists = p.n < b.n1;
    p.row = features;
    p.qkv_row = 3 * features;
    p.at = (long long)p.n * p.sequence * features + p.h * p.size;
    p.qkv_at = 3 * (long long)p.n * p.sequence * features + p.h * p.size;
    p.token = (long long)p.h * a.rows + (long long)p.n * p.sequence;
    p.scale = 1 / sqrtf((float)p.size);
    return p;
}

/* Queries (0), keys (1) or values (2) of tokens before `stop`. */
template <typename Args>
__device__ inline Factor third(const Args &a, const Part &p, int which, int stop)
{
    const Factor f = {a.qkv + p.qkv_at + which * p.row, p.qkv_row, stop, p.size};
    return f;
}

/* sum += left right, for a tile [k][row] of powers in shared memory and the rows of `right` from `first` on. */
__device__ inline void add_powers(const float *powers, const Factor &right, int first, int column, float *steps,
                                  Results &sums)
{
    const bool wide = is_wide<false>(right, column);
    int k = 0;
    walk(
        [&](int stage) {
            if (k >= ATTENTION_TILE || first + k >= right.stop)
                return 0;
            copy_factor<false, ATTENTION_TILE>(right, wide, column, first + k, steps + stage * Results::Right::FLOATS);
            k += STEP;
            return STEP;
        },
        [&](int stage, int count) {
            sums.multiply(powers, steps + stage * Results::Right::FLOATS, count);
            powers += STEP * ATTENTION_PITCH;
        });
}

/* Results of a tile to tokens of an operand, times `factor`. */
__device__ inline void write_tile(float *out, int pitch, const Part &p, float factor, Results &sums)
{
    sums.each([&](int row, int column, float value) {
        if (p.start + row < p.stop && p.feature + column < p.size)
            out[(long long)(p.start + row) * pitch + p.feature + column] = value * factor;
    });
}

/* One row of a tile of scores goes on in its softmax: powers in place of scores; largest score so far, sum so far, and the
 * factor for what was summed before. */
__device__ inline void softmax_tile(float *powers, float *largest, float *total, float *factor, float *halves)
{
    const int row = threadIdx.x % ATTENTION_TILE;
    float *mine = powers + (int)threadIdx.x / ATTENTION_TILE * ATTENTION_TILE / 2 * ATTENTION_PITCH + row,
          most = largest[row], sum = 0;
    for (int k = 0; k < ATTENTION_TILE / 2; k++)
        most = mine[k * ATTENTION_PITCH] > most ? mine[k * ATTENTION_PITCH] : most;
    halves[threadIdx.x] = most;
    __syncthreads();
    most = max(halves[row], halves[ATTENTION_TILE + row]);
    for (int k = 0; k < ATTENTION_TILE / 2; k++)
        sum += mine[k * ATTENTION_PITCH] = expf(mine[k * ATTENTION_PITCH] - most);
    __syncthreads();
    halves[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < ATTENTION_TILE) {
        factor[row] = expf(largest[row] - most);
        total[row] = total[row] * factor[row] + (halves[row] + halves[ATTENTION_TILE + row]);
        largest[row] = most;
    }
    __syncthreads();
}

/* Bounds: samples, heads, queries. */
KERNEL(attention_forward)
{
    float *steps = shared, *powers = steps + ATTENTION_STEPS; /* [ATTENTION_TILE][ATTENTION_PITCH] */
    float *largest = powers + ATTENTION_TILE * ATTENTION_PITCH, *total = largest + ATTENTION_TILE,
          *factor = total + ATTENTION_TILE, *halves = factor + ATTENTION_TILE;
    const Part p = part_of(a, false);
    if (!p.exists) /* the whole CUDA block: no barrier is missed */
        return;
    const int end = p.causal ? p.stop : p.sequence;
    const Factor q = third(a, p, 0, p.stop), k = third(a, p, 1, end), v = third(a, p, 2, end);
    Results o;
    if (threadIdx.x < ATTENTION_TILE) {
        largest[threadIdx.x] = LEAST;
        total[threadIdx.x] = 0;
    }
    for (int j = 0; j < end; j += ATTENTION_TILE) {
        Scores s;
        s.add(steps, q, p.start, k, j, p.size);
        s.each([&](int row, int column, float score) {
            const bool seen = j + column < end && (!p.causal || j + column <= p.start + row);
            powers[column * ATTENTION_PITCH + row] = seen ? score * p.scale : LEAST;
        });
        __syncthreads();
        softmax_tile(powers, largest, total, factor, halves);
        o.each([&](int row, int column, float &sum) { sum *= factor[row]; });
        add_powers(powers, v, j, p.feature, steps, o);
    }
    o.each([&](int row, int column, float &sum) { sum /= total[row]; });
    write_tile(a.output + p.at, p.row, p, 1, o);
    if (p.feature == 0 && threadIdx.x < p.stop - p.start)
        a.logsumexp[p.token + p.start + threadIdx.x] = largest[threadIdx.x] + logf(total[threadIdx.x]);
}

/* delta[i] = gradient[i] . o[i] of the queries [start, stop) of a tile, two threads each; all threads may read them
 * after the next barrier. */
template <typename Args>
__device__ inline void find_deltas(const Args &a, const Part &p, int start, int stop, float *delta, float *halves)
{
    const int row = threadIdx.x % ATTENTION_TILE, from = (int)threadIdx.x / ATTENTION_TILE * divide_up(p.size, 2);
    const long long at = p.at + (long long)(start + row) * p.row;
    float sum = 0;
    if (start + row < stop)
        for (int f = from; f < min(from + divide_up(p.size, 2), p.size); f++)
            sum += a.output[at + f] * a.gradient[at + f];
    halves[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < ATTENTION_TILE)
        delta[row] = halves[row] + halves[ATTENTION_TILE + row];
}

/* logsumexp[i] of the same queries. */
template <typename Args>
__device__ inline void copy_logsumexp(const Args &a, const Part &p, int start, int stop, float *logsumexp)
{
    const int query = start + (int)threadIdx.x;
    if (threadIdx.x < ATTENTION_TILE)
        logsumexp[threadIdx.x] = query < stop ? a.logsumexp[p.token + query] : 0;
}

/* The part of the gradient of a tile's queries that comes from the keys [first, last). */
template <typename Args>
__device__ inline void backward_queries(const Args &a, const Part &p, int first, int last, float *steps, float *powers,
                                        float *logsumexp, float *delta, float *halves)
{
    const int end = p.causal ? min(p.stop, last) : last, part = block_bounds(a).part;
    const Factor q = third(a, p, 0, p.stop), k = third(a, p, 1, end), v = third(a, p, 2, end);
    const Factor gradient = {a.gradient + p.at, p.row, p.stop, p.size};
    copy_logsumexp(a, p, p.start, p.stop, logsumexp);
    find_deltas(a, p, p.start, p.stop, delta, halves);
    Results dq;
    for (int j = first; j < end; j += ATTENTION_TILE) {
        Scores s;
        s.add(steps, q, p.start, k, j, p.size);
        s.each([&](int row, int column, float score) {
            const bool seen = j + column < end && (!p.causal || j + column <= p.start + row);
            powers[column * ATTENTION_PITCH + row] = seen ? expf(score * p.scale - logsumexp[row]) : 0;
        });
        Scores dp;
        dp.add(steps, gradient, p.start, v, j, p.size);
        dp.each([&](int row, int column, float sum) { powers[column * ATTENTION_PITCH + row] *= sum - delta[row]; });
        add_powers(powers, k, j, p.feature, steps, dq);
    }
    if (part == 0)
        write_tile(a.dqkv + p.qkv_at, p.qkv_row, p, p.scale, dq);
    else
        write_tile(a.parts + (long long)(part - 1) * a.rows * p.row + p.at, p.row, p, p.scale, dq);
}

/* Gradients of a tile's keys and values; rows of a tile are keys here, columns queries. */
template <typename Args>
__device__ inline void backward_keys(const Args &a, const Part &p, int first, float *steps, float *powers,
                                     float *logsumexp, float *delta, float *halves)
{
    const int end = p.sequence;
    const Factor q = third(a, p, 0, end);
    const Factor k = third(a, p, 1, p.stop), v = third(a, p, 2, p.stop);
    const Factor gradient = {a.gradient + p.at, p.row, end, p.size};
    Results dk, dv;
    for (int next, i = first; i < end; i = next) {
        next = min((i / ATTENTION_TILE + 1) * ATTENTION_TILE, end);
        copy_logsumexp(a, p, i, next, logsumexp);
        find_deltas(a, p, i, next, delta, halves);
        Scores s;
        s.add(steps, k, p.start, q, i, p.size);
        s.each([&](int row, int column, float score) {
            const bool seen = i + column < next && (!p.causal || p.start + row <= i + column);
            powers[column * ATTENTION_PITCH + row] = seen ? expf(score * p.scale - logsumexp[column]) : 0;
        });
        add_powers(powers, gradient, i, p.feature, steps, dv);
        Scores dp;
        dp.add(steps, v, p.start, gradient, i, p.size);
        dp.each([&](int row, int column, float sum) { powers[column * ATTENTION_PITCH + row] *= sum - delta[column]; });
        add_powers(powers, q, i, p.feature, steps, dk);
    }
    write_tile(a.dqkv + p.qkv_at + p.row, p.qkv_row, p, p.scale, dk);
    write_tile(a.dqkv + p.qkv_at + 2 * p.row, p.qkv_row, p, 1, dv);
}

/* Bounds: samples, heads, keys, and the number of the slice of keys. */
KERNEL(attention_backward)
{
    float *steps = shared, *powers = steps + ATTENTION_STEPS; /* [ATTENTION_TILE][ATTENTION_PITCH] */
    float *logsumexp = powers + ATTENTION_TILE * ATTENTION_PITCH, *delta = logsumexp + ATTENTION_TILE,
          *halves = delta + ATTENTION_TILE;
    const Part p = part_of(a, true);
    const auto &b = block_bounds(a);
    if (!p.exists) /* the whole CUDA block: no barrier is missed */
        return;
    if (p.by_query)
        backward_queries(a, p, b.t0, b.t1, steps, powers, logsumexp, delta, halves);
    else
        backward_keys(a, p, p.causal ? b.t0 : 0, steps, powers, logsumexp, delta, halves);
}

/* Parts of gradients of queries, in order; a thread for each number. Bounds: samples, heads, queries, and how many. */
KERNEL(attention_add_parts)
{
    const auto &b = block_bounds(a);
    const int sequence = a.sequence, features = a.features, size = features / a.heads, width = (b.h1 - b.h0) * size,
              tokens = b.t1 - b.t0;
    for (int i = thread_of_row(); i < (b.n1 - b.n0) * tokens * width; i += threads_of_row()) {
        const long long row = (long long)(b.n0 + i / width / tokens) * sequence + b.t0 + i / width % tokens;
        const int column = b.h0 * size + i % width;
        float sum = a.dqkv[row * 3 * features + column];
        for (int part = 0; part < b.part; part++)
            sum += a.parts[((long long)part * a.rows + row) * features + column];
        a.dqkv[row * 3 * features + column] = sum;
    }
}
