/* ReLU of the layouts "nchw16" and "nchw": kernels/elementwise/elementwise.pyx. Bounds: groups, channels, rows. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nchw.cuh"

KERNEL(relu_forward)
{
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    for_places(b, source.width, source.lanes, [&](const Place &p) {
        a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] =
            activate(a.input[pixel(source, p.group, p.channel, p.y, p.x) + p.lane], ACTIVATION_RELU);
    });
}

KERNEL(relu_backward)
{
    const Map source = a.in_map, target = a.out_map, result = a.activations_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    for_places(b, source.width, source.lanes, [&](const Place &p) {
        const float dy = a.gradient[pixel(source, p.group, p.channel, p.y, p.x) + p.lane];
        const float y = a.activations[pixel(result, p.group, p.channel, p.y, p.x) + p.lane];
        a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = y > 0 ? dy : 0;
    });
}
