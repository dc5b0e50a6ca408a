/* Beginning and end of a step: images into the first map, the update of the parameters, and the counter that a captured
 * graph reads its iteration from. */

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

/* g = sum of the partial gradients in order; v = momentum v + (g + weight_decay w); w = w - rate v. */
KERNEL(sgd)
{
    const int partials = a.integers[0], outputs = a.integers[1], inputs = a.integers[2];
    const int *b = block_bounds(a);
    const float *partial = (const float *)a.operand[0];
    float *gradient = (float *)a.operand[1];
    const float rate = ((const float *)a.operand[6])[iteration_of(a) % a.integers[3]];
    const float momentum = (float)a.reals[0], decay = (float)a.reals[1];
    const long long size = (long long)outputs * (inputs + 1), items = (long long)(b[1] - b[0]) * (inputs + 1);
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int o = b[0] + (int)(i / (inputs + 1)), k = (int)(i % (inputs + 1));
        const long long at = (long long)o * (inputs + 1) + k;
        float *w = k < inputs ? (float *)a.operand[2] + (long long)o * inputs + k : (float *)a.operand[3] + o;
        float *v = k < inputs ? (float *)a.operand[4] + (long long)o * inputs + k : (float *)a.operand[5] + o;
        float sum = partial[at];
        for (int p = 1; p < partials; p++)
            sum += partial[p * size + at];
        gradient[at] = sum;
        *v = momentum * *v + (sum + decay * *w);
        *w -= rate * *v;
    }
}

/* counter += integers[0]; one thread. The last node of a captured graph. */
KERNEL(advance_counter)
{
    if (thread_of_row() == 0)
        *(long long *)a.operand[0] += a.integers[0];
}
