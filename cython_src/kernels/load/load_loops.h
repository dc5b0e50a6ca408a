/* Inner loop of loading images. */
#ifndef FORKTASK_LOAD_LOOPS_H
#define FORKTASK_LOAD_LOOPS_H

typedef struct LoadLoops {
    /* out[x * 16 + i] = rows[i][x]: sixteen rows of pixels become one row in the layout "lanes". */
    void (*interleave_row)(const float *const *rows, int width, float *out);
} LoadLoops;

#endif
