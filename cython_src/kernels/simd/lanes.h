/* The number of lanes that every layout and every inner loop counts in, whatever the registers hold. */
#ifndef FORKTASK_LANES_H
#define FORKTASK_LANES_H

/* Floats of a vector: images of a pixel in the layout "nchw16", neighbouring pixels of an image in the layout "nchw",
 * channels of a pixel in the layout "nhwc", columns of a panel of packed weights. */
#define LANES 16

#endif
