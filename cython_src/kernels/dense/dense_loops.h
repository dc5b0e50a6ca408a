/* Inner loops of fully connected layers: `lanes` images at a time, LANES or one. */
#ifndef FORKTASK_DENSE_LOOPS_H
#define FORKTASK_DENSE_LOOPS_H

typedef struct DenseLoops {
    /* logits[o][lane] = bias[o] + sum over f of w[o * features + f] * x[f][lane] */
    void (*forward)(const float *x, const float *w, const float *bias, float *logits, int features, int outputs,
                    int lanes);
    void (*backward_data)(const float *dlogits, const float *w, float *dx, int features, int outputs, int lanes);
    /* out[o][f] = sum over groups and lanes of dlogits[group][o][lane] * x[group][f][lane]; out[o][features]:
     * the bias */
    void (*backward_weights)(const float *dlogits, const float *x, float *out, int groups, int features, int outputs,
                             int lanes, int accumulate);
} DenseLoops;

#endif
