/* ReLU of the layouts "nchw16" and "nchw": kernels/elementwise/elementwise.pyx. Bounds: groups, channels, rows. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nchw.cuh"

KERNEL(relu_forward)
{
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    const int rows = b.y1 - b.y0;
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    const long long items = (long long)(b.g1 - b.g0) * (b.c1 - b.c0) * rows * source.width * source.lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const Place p = place_of(i, b, rows, source.width, source.lanes);
        a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] =
            activate(a.input[pixel(source, p.group, p.channel, p.y, p.x) + p.lane], ACTIVATION_RELU);
    }
}

KERNEL(relu_backward)
{
    const Map source = a.in_map, target = a.out_map, result = a.activation_map;
    const auto &b = block_bounds(a);
    const int rows = b.y1 - b.y0;
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    const long long items = (long long)(b.g1 - b.g0) * (b.c1 - b.c0) * rows * source.width * source.lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const Place p = place_of(i, b, rows, source.width, source.lanes);
        const float dy = a.gradient[pixel(source, p.group, p.channel, p.y, p.x) + p.lane];
        const float y = a.activation[pixel(result, p.group, p.channel, p.y, p.x) + p.lane];
        a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = y > 0 ? dy : 0;
    }
}
