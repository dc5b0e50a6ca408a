/* The forward convolution as a first OpenACC port writes it, a thread for each output, to compare nchw.cu with: padding by
 * asking at each tap whether the pixel lies inside (`if`), or by reading the padded map (`pad`). Operands of conv_forward. */

#include "cython_src/kernels/convolution/grid_sizes.cuh" /* TAPS, written from SIZES of grids.py */
#include "cython_src/kernels/maps/nchw.cuh"

template <bool ASK, typename Args>
__device__ void convolve_output(const Args &a)
{
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    for_places(b, target.width, source.lanes, [&](const Place &p) {
        const float *weight = a.weight + (long long)p.channel * source.channels * TAPS;
        float sum = a.bias[p.channel];
        for (int c = 0; c < source.channels; c++)
            for (int k = 0; k < TAPS; k++, weight++) {
                const int y = p.y + k / 5 - source.halo, x = p.x + k % 5 - source.halo;
                if (!ASK || (y >= 0 && y < source.height && x >= 0 && x < source.width))
                    sum += *weight * a.input[pixel(source, p.group, c, y, x) + p.lane];
            }
        a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = sum;
    });
}

KERNEL_OF(conv_forward_if, conv_forward)
{
    convolve_output<true>(a);
}
KERNEL_OF(conv_forward_pad, conv_forward)
{
    convolve_output<false>(a);
}
