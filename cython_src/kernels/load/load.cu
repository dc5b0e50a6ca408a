/* Images of a step into the first map, in both layouts: kernels/load/load.pyx. */

#include "cython_src/kernels/maps/nhwc.cuh"
#include "cython_src/kernels/maps/nchw.cuh"

#define BAD_INDEX 2

/* Images batch_order[iteration % num_batches]; every physical element is written, halo and empty lanes with zero. */
KERNEL(load_images)
{
    const Map m = a.out_map;
    const int batch = a.batch, num_images = a.num_images;
    const auto &b = block_bounds(a);
    const int *order = a.batch_order + iteration_of(a) % a.num_batches * batch;
    for (int i = thread_of_row(); i < (b.g1 - b.g0) * m.lanes; i += threads_of_row()) {
        const int image = b.g0 * m.lanes + i;
        const int number = image < batch ? order[image] : -1;
        if (image < batch && (number < 0 || number >= num_images))
            fail(a, BAD_INDEX);
        a.labels[image] = number >= 0 && number < num_images ? a.dataset_labels[number] : -1;
    }
    const long long plane = (long long)m.rows * m.pitch * m.lanes, items = (b.g1 - b.g0) * m.channels * plane;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int lane = (int)(i % m.lanes), x = (int)(i / m.lanes % m.pitch) - m.halo;
        const int y = (int)(i / m.lanes / m.pitch % m.rows) - m.halo, c = (int)(i / plane % m.channels);
        const int g = b.g0 + (int)(i / plane / m.channels), image = g * m.lanes + lane;
        const bool inside = image < batch && y >= 0 && y < m.height && x >= 0 && x < m.width;
        const int number = inside ? order[image] : -1;
        a.output[pixel(m, g, c, y, x) + lane] =
            number >= 0 && number < num_images
                ? a.images[(((long long)number * m.channels + c) * m.height + y) * m.width + x]
                : 0;
    }
}

/* Bounds: images. */
KERNEL(nhwc_load_images)
{
    const NhwcMap m = a.out_map;
    const auto &b = block_bounds(a);
    const int *order = a.batch_order + iteration_of(a) % a.num_batches * a.batch;
    clear_channel_halo(m, a.output, b.n0, b.n1, 0, m.height, 0, m.pitch);
    for (int n = b.n0 + thread_of_row(); n < b.n1; n += threads_of_row()) {
        if (order[n] < 0 || order[n] >= a.num_images)
            fail(a, BAD_INDEX);
        else
            a.labels[n] = a.dataset_labels[order[n]];
    }
    const Box box = {b.n0, b.n1, 0, m.height, 0, m.channels};
    for_channels(m, box, 0, m.pitch, 1, [&](int n, int y, int x, int c) {
        const int number = order[n];
        const bool there = c < m.channels && number >= 0 && number < a.num_images;
        a.output[pixel(m, n, y, x) + c] =
            there ? a.images[(((long long)number * m.channels + c) * m.height + y) * m.width + x] : 0;
    });
}
