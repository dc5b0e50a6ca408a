/* ReLU of the lane layouts: kernels/elementwise/elementwise.pyx. Bounds: groups, channels, rows. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/lanes.cuh"

KERNEL(relu_forward)
{
    const Map source = map_at(a.integers), target = map_at(a.integers + 7);
    const int *b = block_bounds(a), rows = b[5] - b[4];
    const float *input = (const float *)a.operand[0];
    float *out = (float *)a.operand[1];
    clear_halo(target, out, b[0], b[1], b[2], b[3], b[4], b[5]);
    const long long items = (long long)(b[1] - b[0]) * (b[3] - b[2]) * rows * source.width * source.lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const Place p = place_of(i, b, rows, source.width, source.lanes);
        out[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] =
            activate(input[pixel(source, p.group, p.channel, p.y, p.x) + p.lane], ACTIVATION_RELU);
    }
}

KERNEL(relu_backward)
{
    const Map source = map_at(a.integers), target = map_at(a.integers + 7), result = map_at(a.integers + 14);
    const int *b = block_bounds(a), rows = b[5] - b[4];
    const float *gradient = (const float *)a.operand[0], *activation = (const float *)a.operand[1];
    float *out = (float *)a.operand[2];
    clear_halo(target, out, b[0], b[1], b[2], b[3], b[4], b[5]);
    const long long items = (long long)(b[1] - b[0]) * (b[3] - b[2]) * rows * source.width * source.lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const Place p = place_of(i, b, rows, source.width, source.lanes);
        const float dy = gradient[pixel(source, p.group, p.channel, p.y, p.x) + p.lane];
        const float y = activation[pixel(result, p.group, p.channel, p.y, p.x) + p.lane];
        out[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = y > 0 ? dy : 0;
    }
}
