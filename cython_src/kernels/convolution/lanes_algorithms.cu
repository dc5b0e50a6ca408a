/* The forward convolution as a first OpenACC port writes it, four ways, for comparison with lanes.cu: padding by asking
 * at each tap whether the pixel lies inside (`if`) or by reading the padded map (`pad`); a thread for each output, or a
 * CUDA block for each output whose threads add up taps in parallel (`reduction`). Operands of conv_forward. */

#include "cython_src/kernels/convolution/lanes.cuh"

template <bool ASK>
__device__ inline float tap_product(const GpuArgs &a, const Map &source, const Place &p, int k)
{
    const int c = k / TAPS, y = p.y + k % TAPS / 5 - source.halo, x = p.x + k % 5 - source.halo;
    if (ASK && (y < 0 || y >= source.height || x < 0 || x >= source.width))
        return 0;
    const float *weight = (const float *)a.operand[1] + (long long)p.channel * source.channels * TAPS;
    return weight[k] * ((const float *)a.operand[0])[pixel(source, p.group, c, y, x) + p.lane];
}

template <bool ASK>
__device__ void convolve_output(const GpuArgs &a)
{
    const Map source = map_at(a.integers), target = map_at(a.integers + 7);
    const int *b = block_bounds(a), rows = b[5] - b[4];
    float *out = (float *)a.operand[3];
    clear_halo(target, out, b[0], b[1], b[2], b[3], b[4], b[5]);
    const long long items = (long long)(b[1] - b[0]) * (b[3] - b[2]) * rows * target.width * source.lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const Place p = place_of(i, b, rows, target.width, source.lanes);
        float sum = ((const float *)a.operand[2])[p.channel];
        for (int k = 0; k < source.channels * TAPS; k++)
            sum += tap_product<ASK>(a, source, p, k);
        out[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = sum;
    }
}

template <bool ASK>
__device__ void convolve_output_reduction(const GpuArgs &a)
{
    float *sums = shared; /* [THREADS] */
    const Map source = map_at(a.integers), target = map_at(a.integers + 7);
    const int *b = block_bounds(a), rows = b[5] - b[4];
    float *out = (float *)a.operand[3];
    clear_halo(target, out, b[0], b[1], b[2], b[3], b[4], b[5]);
    const long long items = (long long)(b[1] - b[0]) * (b[3] - b[2]) * rows * target.width * source.lanes;
    for (long long i = blockIdx.x; i < items; i += gridDim.x) {
        const Place p = place_of(i, b, rows, target.width, source.lanes);
        float sum = 0;
        for (int k = threadIdx.x; k < source.channels * TAPS; k += THREADS)
            sum += tap_product<ASK>(a, source, p, k);
        sum = sum_threads(sums, sum);
        if (threadIdx.x == 0)
            out[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = sum + ((const float *)a.operand[2])[p.channel];
        __syncthreads();
    }
}

KERNEL(conv_forward_if)
{
    convolve_output<true>(a);
}
KERNEL(conv_forward_pad)
{
    convolve_output<false>(a);
}
KERNEL(conv_forward_if_reduction)
{
    convolve_output_reduction<true>(a);
}
KERNEL(conv_forward_pad_reduction)
{
    convolve_output_reduction<false>(a);
}
