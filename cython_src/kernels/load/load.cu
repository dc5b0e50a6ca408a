/* Images of a step into the first map, in both layouts: kernels/load/load.pyx. */

#include "cython_src/kernels/maps/channels.cuh"
#include "cython_src/kernels/maps/lanes.cuh"

#define BAD_INDEX 2

/* Images batch_order[iteration % num_batches]; every physical element is written, halo and empty lanes with zero. */
KERNEL(load_images)
{
    const Map m = map_at(a.integers);
    const int batch = a.integers[7], num_batches = a.integers[8], num_images = a.integers[9];
    const int *b = block_bounds(a);
    const float *images = (const float *)a.operand[0];
    const int *all_labels = (const int *)a.operand[1];
    const int *order = (const int *)a.operand[2] + iteration_of(a) % num_batches * batch;
    float *out = (float *)a.operand[3];
    int *labels = (int *)a.operand[4];
    for (int i = thread_of_row(); i < (b[1] - b[0]) * m.lanes; i += threads_of_row()) {
        const int image = b[0] * m.lanes + i;
        const int number = image < batch ? order[image] : -1;
        if (image < batch && (number < 0 || number >= num_images))
            fail(a, BAD_INDEX);
        labels[image] = number >= 0 && number < num_images ? all_labels[number] : -1;
    }
    const long long plane = (long long)m.rows * m.pitch * m.lanes, items = (b[1] - b[0]) * m.channels * plane;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int lane = (int)(i % m.lanes), x = (int)(i / m.lanes % m.pitch) - m.halo;
        const int y = (int)(i / m.lanes / m.pitch % m.rows) - m.halo, c = (int)(i / plane % m.channels);
        const int g = b[0] + (int)(i / plane / m.channels), image = g * m.lanes + lane;
        const bool inside = image < batch && y >= 0 && y < m.height && x >= 0 && x < m.width;
        const int number = inside ? order[image] : -1;
        out[pixel(m, g, c, y, x) + lane] =
            number >= 0 && number < num_images
                ? images[(((long long)number * m.channels + c) * m.height + y) * m.width + x]
                : 0;
    }
}

/* Bounds: images. */
KERNEL(channels_load_images)
{
    const ChannelsMap m = channel_map_at(a.integers);
    const int batch = a.integers[5], num_batches = a.integers[6], num_images = a.integers[7];
    const int *b = block_bounds(a), *order = (const int *)a.operand[2] + iteration_of(a) % num_batches * batch;
    const float *images = (const float *)a.operand[0];
    float *out = (float *)a.operand[3];
    clear_channel_halo(m, out, b[0], b[1], 0, m.height, 0, m.pitch);
    for (int n = b[0] + thread_of_row(); n < b[1]; n += threads_of_row()) {
        if (order[n] < 0 || order[n] >= num_images)
            fail(a, BAD_INDEX);
        else
            ((int *)a.operand[4])[n] = ((const int *)a.operand[1])[order[n]];
    }
    const int box[4] = {b[0], b[1], 0, m.height};
    for_channels(m, box, 0, m.pitch, 1, [&](int n, int y, int x, int c) {
        const int number = order[n];
        const bool there = c < m.channels && number >= 0 && number < num_images;
        out[pixel(m, n, y, x) + c] =
            there ? images[(((long long)number * m.channels + c) * m.height + y) * m.width + x] : 0;
    });
}
