"""PyTorch's convolutions and products in the shapes of our networks: `python -m layers BATCH`, beside steps.py.

Prints for each the time on the device and the rate: in float32, and with channels innermost in TF32. Names are those of
`forktask kernels`, which measures ours.
"""

import math
import sys
from functools import partial

from forktask.cython_src.gpu.bind import GpuBoundPlan
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.registry import get_network

CONVOLUTIONS = {
    "resnet18": "layer1.0.conv1 layer2.0.conv1 layer2.0.conv2 layer3.0.conv1 layer3.0.conv2 layer4.0.conv2",
    "mobilenet_v2": "layers.1.conv2 layers.2.conv2 layers.16.conv3 conv2",  # the first two are depthwise
    "cifar10_cnn": "conv1 conv2",
}
PASSES = "", ".data_gradient", ".weight_gradient"
PRODUCTS = ("h.0.attn.c_attn", *(f"h.5.mlp.{layer}{what}" for layer in ("c_fc", "c_proj") for what in PASSES))
PRODUCTS += ("h.5.attn.c_attn.data_gradient",)  # of gpt2_small
CALLS = 20  # in a captured graph


def convolutions(batch):
    """Network, layer, multiply-adds, shapes of input and weights, and numbers of each."""
    for network, names in CONVOLUTIONS.items():
        for layer, before, after in get_network(network).shapes():
            if layer.name in names.split():
                weight = after[0], before[0] // layer.groups, layer.kernel, layer.kernel
                size = batch * math.prod(after) * math.prod(weight[1:])
                numbers = layer.stride, layer.padding, layer.dilation, layer.groups
                yield network, layer.name, size, (batch, *before), weight, numbers


def products(batch):
    """Loop, multiply-adds and factors of each: rows, columns, whether memory holds the transpose."""
    for loop in lower("gpt2_small", batch=batch, granularity="device").loops:
        if loop.name in PRODUCTS:
            (p,) = GpuBoundPlan._products(kernel_table.get(loop.kernel), loop).blocks
            factors = (p.rows, p.inner, p.left.transposed), (p.inner, p.columns, p.right.transposed)
            yield loop.name, p.rows * p.columns * p.inner, *factors


def calls(batch, device, channels_last):
    """Network, layer, multiply-adds, and a call that computes it, of all of these."""
    import torch

    order = torch.channels_last if channels_last else torch.contiguous_format
    for network, layer, size, *shapes, (stride, padding, dilation, groups) in convolutions(batch):
        x, w = (torch.randn(shape, device=device).to(memory_format=order) for shape in shapes)
        forward = partial(torch.conv2d, x, w, None, stride, padding, dilation, groups)
        yield network, layer, size, forward
        numbers = [stride] * 2, [padding] * 2, [dilation] * 2, False, [0] * 2, groups
        backward = partial(torch.ops.aten.convolution_backward, forward(), x, w, None, *numbers)
        for what, mask in zip(PASSES[1:], ((True, False, False), (False, True, False)), strict=True):
            yield network, layer + what, size, partial(backward, mask)
    for loop, size, *shapes in products(batch):
        factors = (
            torch.randn(columns, rows, device=device).T if transposed else torch.randn(rows, columns, device=device)
            for rows, columns, transposed in shapes
        )
        yield "gpt2_small", loop, size, partial(torch.matmul, *factors)


def device_s(call):
    """Seconds of a call, of several in a captured graph."""
    import torch
    from torch.utils.benchmark import Timer

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return Timer("replay()", globals={"replay": graph.replay}).blocked_autorange(min_run_time=0.1).median / CALLS


def main(batch):
    import torch

    torch.backends.cudnn.benchmark = True
    print("network,layer,products,us,TFLOP_per_s")
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        for network, layer, size, call in calls(int(batch), "cuda", channels_last=tf32):
            seconds = device_s(call)
            rate = 2e-12 * size / seconds
            print(f"{network},{layer},{'tf32' if tf32 else 'float32'},{1e6 * seconds:.1f},{rate:.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
