/* What all CUDA kernels share: their one argument, feature maps, iteration, failure.
 *
 * A kernel has the name, operands, attributes and bounds of its CPU form and computes a range of a loop's blocks: grid
 * row y is block first_block + y, and the CUDA blocks of a row divide that block among them. Sums run in an order that
 * depends on the plan and on the constants here only, never on the device: every GPU model gives the same bits.
 *
 * The same sources are compiled for the CPU by the tests (FORKTASK_EMULATED), where each CUDA thread is a coroutine.
 */
#ifndef FORKTASK_COMMON_CUH
#define FORKTASK_COMMON_CUH

#define THREADS      128 /* of a CUDA block, in every kernel */
#define MAX_OPERANDS 16
#define MAX_INTEGERS 32
#define MAX_REALS    4
#define TAPS         25

#ifndef FORKTASK_EMULATED
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ GpuArgs a)
extern __shared__ __align__(16) float shared[]; /* of the CUDA block; undefined on entry */

__device__ inline long long now_ns()
{
    long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
#endif

/* Laid out as gpu_program.ARGS_DTYPE. */
struct GpuArgs {
    void *operand[MAX_OPERANDS];
    const int *bounds;           /* shape (blocks of the loop, bounds_width) */
    const long long *counter;    /* added to `replay`: what changes when a captured graph is launched again; or NULL */
    unsigned long long *failure; /* smallest code of a failed block, see fail(); all ones: none */
    long long replay;
    double reals[MAX_REALS];
    int integers[MAX_INTEGERS];
    int bounds_width, first_block, first_task, iteration_stride, iteration_offset, reserved;
};

struct Map {
    int channels, height, width, rows, pitch, halo, lanes;
};

__device__ inline Map map_at(const int *integers)
{
    Map m;
    m.channels = integers[0];
    m.height = integers[1];
    m.width = integers[2];
    m.rows = integers[3];
    m.pitch = integers[4];
    m.halo = integers[5];
    m.lanes = integers[6];
    return m;
}

/* Offset of lane 0 of the interior pixel (y, x); either may lie in the halo. */
__device__ inline long long pixel(const Map &m, int group, int channel, int y, int x)
{
    return ((((long long)group * m.channels + channel) * m.rows + y + m.halo) * m.pitch + x + m.halo) * m.lanes;
}

__device__ inline int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Number of the thread within its grid row, and threads of a grid row. */
__device__ inline int thread_of_row()
{
    return blockIdx.x * THREADS + threadIdx.x;
}

__device__ inline int threads_of_row()
{
    return gridDim.x * THREADS;
}

__device__ inline const int *block_bounds(const GpuArgs &a)
{
    return a.bounds + (long long)(a.first_block + (int)blockIdx.y) * a.bounds_width;
}

__device__ inline long long iteration_of(const GpuArgs &a)
{
    return (a.replay + (a.counter ? *a.counter : 0)) * a.iteration_stride + a.iteration_offset;
}

/* Note that this block failed. The earliest failure in plan order wins: iteration, task, status. */
__device__ inline void fail(const GpuArgs &a, int status)
{
    const unsigned long long task = a.first_task + a.first_block + blockIdx.y;
    atomicMin(a.failure, (unsigned long long)iteration_of(a) << 40 | task << 8 | (unsigned)status);
}

/* Zero everything but the interior in the physical rows that belong to interior rows [y0, y1); all threads of the
 * grid row divide it. */
__device__ inline void clear_halo(const Map &m, float *p, int g0, int g1, int c0, int c1, int y0, int y1)
{
    if (m.halo == 0)
        return;
    const int sides = m.pitch - m.width;
    const int above = y0 == 0 ? m.halo * m.pitch : 0;
    const int beside = (y1 - y0) * sides;
    const int below = y1 == m.height ? (m.rows - m.height - m.halo) * m.pitch : 0;
    const int plane = (above + beside + below) * m.lanes;
    const long long total = (long long)(g1 - g0) * (c1 - c0) * plane;
    for (long long i = thread_of_row(); i < total; i += threads_of_row()) {
        const int which = (int)(i / plane), lane = (int)(i % plane) % m.lanes;
        int at = (int)(i % plane) / m.lanes, y, x;
        if (at < above) {
            y = at / m.pitch - m.halo;
            x = at % m.pitch - m.halo;
        } else if ((at -= above) < beside) {
            y = y0 + at / sides;
            x = at % sides;
            x = x < m.halo ? x - m.halo : x - m.halo + m.width;
        } else {
            at -= beside;
            y = m.height + at / m.pitch;
            x = at % m.pitch - m.halo;
        }
        p[pixel(m, g0 + which / (c1 - c0), c0 + which % (c1 - c0), y, x) + lane] = 0;
    }
}

/* One element of a map that a block of groups, channels and rows divides among its threads. */
struct Place {
    int group, channel, y, x, lane;
};

__device__ inline Place place_of(long long i, const int *b, int rows, int width, int lanes)
{
    Place p;
    p.lane = (int)(i % lanes);
    i /= lanes;
    p.x = (int)(i % width);
    i /= width;
    p.y = b[4] + (int)(i % rows);
    i /= rows;
    p.channel = b[2] + (int)(i % (b[3] - b[2]));
    p.group = b[0] + (int)(i / (b[3] - b[2]));
    return p;
}

#endif
