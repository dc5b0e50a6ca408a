"""Plans on a GPU: device, launches, cuBLAS, copies between host and device."""
