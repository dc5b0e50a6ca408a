"""What kernels of loading get, by name; see `KernelSpec`."""

from ..interface.arguments import map_attributes, nhwc_attributes, takes

KERNELS = {
    "load_images": takes(
        "images dataset_labels batch_order output labels",
        (*map_attributes("out"), "batch num_batches num_images in_order?"),
        bounds="g0 g1",
    ),
    "nhwc_load_images": takes(
        "images dataset_labels batch_order output labels",
        (*nhwc_attributes("out"), "batch num_batches num_images in_order?"),
        bounds="n0 n1",
    ),
    "tokens_load": takes(
        "dataset_tokens dataset_labels? batch_order tokens targets",
        "sequence answers? batch num_batches num_images",
        bounds="n0 n1",
    ),
}
