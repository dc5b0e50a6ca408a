/* The forward convolution as a first OpenACC port writes it, four ways, for comparison with nchw.cu: padding by asking
 * at each tap whether the pixel lies inside (`if`) or by reading the padded map (`pad`); a thread for each output, or a
 * CUDA block for each output whose threads add up taps in parallel (`reduction`). Operands of conv_forward. */

#include "cython_src/kernels/convolution/nchw.cuh"

template <bool ASK, typename Args>
__device__ inline float tap_product(const Args &a, const Map &source, const Place &p, int k)
{
    const int c = k / TAPS, y = p.y + k % TAPS / 5 - source.halo, x = p.x + k % 5 - source.halo;
    if (ASK && (y < 0 || y >= source.height || x < 0 || x >= source.width))
        return 0;
    const float *weight = a.weight + (long long)p.channel * source.channels * TAPS;
    return weight[k] * a.input[pixel(source, p.group, c, y, x) + p.lane];
}

template <bool ASK, typename Args>
__device__ void convolve_output(const Args &a)
{
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    for_places(b, target.width, source.lanes, [&](const Place &p) {
        float sum = a.bias[p.channel];
        for (int k = 0; k < source.channels * TAPS; k++)
            sum += tap_product<ASK>(a, source, p, k);
        a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = sum;
    });
}

template <bool ASK, typename Args>
__device__ void convolve_output_reduction(const Args &a)
{
    float *sums = shared; /* [THREADS] */
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    const auto output = [&](const Place &p) {
        float sum = 0;
        for (int k = threadIdx.x; k < source.channels * TAPS; k += THREADS)
            sum += tap_product<ASK>(a, source, p, k);
        sum = sum_threads(sums, sum);
        if (threadIdx.x == 0)
            a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = sum + a.bias[p.channel];
        __syncthreads();
    };
    for_places(b, target.width, source.lanes, output, blockIdx.x, gridDim.x);
}

KERNEL_OF(conv_forward_if, conv_forward)
{
    convolve_output<true>(a);
}
KERNEL_OF(conv_forward_pad, conv_forward)
{
    convolve_output<false>(a);
}
KERNEL_OF(conv_forward_if_reduction, conv_forward)
{
    convolve_output_reduction<true>(a);
}
KERNEL_OF(conv_forward_pad_reduction, conv_forward)
{
    convolve_output_reduction<false>(a);
}
