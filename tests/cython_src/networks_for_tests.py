"""Small forms of the networks, and data for them."""

import numpy as np

import forktask as ft
from forktask.cython_src.lowering.lower import initialise
from forktask.cython_src.networks import mobilenet_v1, mobilenet_v2, preact_resnet18, resnet18, resnext29_2x64d
from forktask.cython_src.networks.parts import convolutional_classifier

# Layers without norms, biases, a pooled branch, a tensor with four readers, a sum of a layer with itself.
BRANCHES = ft.Network(
    "branches",
    (3, 10, 10),
    (
        ft.Conv2d("conv1", 16, 5, 2),
        ft.ReLU("relu1"),
        ft.AveragePool("mean", 2),
        ft.Conv2d("conv2", 16, 3, 2, dilation=2, groups=2, after="mean"),
        ft.MaxPool("largest", 3, 1, 1, after="mean"),
        ft.Add("sum1", ("conv2", "largest")),
        ft.Add("sum2", ("sum1", "mean")),
        ft.Add("sum3", ("sum2", "mean")),
        ft.BatchNorm("bn", after="sum3"),
        ft.Add("sum4", ("bn", "sum3")),
        ft.Add("sum5", ("sum4", "sum4")),
        ft.ReLU("relu2"),
        ft.GlobalAvgPool("pool"),
        ft.Linear("linear", 10),
        ft.SoftmaxCrossEntropy(),
    ),
)

# Maps read by fully connected layers, two of them by a pool too; sums and activations without pixels; vectors that
# several layers read.
DENSE = ft.Network(
    "dense",
    (3, 9, 17),
    (
        ft.Conv2d("conv1", 20, 3, 1),
        ft.ReLU("relu1"),
        ft.Linear("left", 24),
        ft.ReLU("relu2"),
        ft.MaxPool("pool1", 2, after="relu1"),
        ft.Linear("right", 24),
        ft.Linear("middle", 24, after="relu1"),
        ft.Add("sum1", ("relu2", "right")),
        ft.Add("sum2", ("middle", "sum1")),
        ft.ReLU6("relu3"),
        ft.Linear("linear1", 24),
        ft.Add("sum3", ("linear1", "relu3")),
        ft.Linear("linear", 10),
        ft.SoftmaxCrossEntropy(),
    ),
)
# Sigmoids of maps with padding channels, and without pixels; a reader's halo, and a tensor with two readers.
SIGMOIDS = ft.Network(
    "sigmoids",
    (3, 8, 8),
    (
        ft.Conv2d("conv1", 20, 3, 1),
        ft.Sigmoid("sigmoid1"),
        ft.Conv2d("conv2", 20, 3, 1),
        ft.Add("sum", ("conv2", "sigmoid1")),
        ft.Sigmoid("sigmoid2"),
        ft.Linear("linear1", 24),
        ft.Sigmoid("sigmoid3"),
        ft.Linear("linear", 10),
        ft.SoftmaxCrossEntropy(),
    ),
)
# No fully connected layer: each class has a map. A sum and its activation belong to a convolution.
MAPS_OF_CLASSES = ft.Network(
    "maps_of_classes",
    (3, 6, 6),
    (
        ft.Conv2d("conv1", 20, 3, 1),
        ft.ReLU("relu1"),
        ft.Conv2d("conv2", 20, 1, 0),
        ft.Add("sum", ("conv2", "relu1")),
        ft.ReLU("relu2"),
        ft.Conv2d("conv3", 10, 1, 0),
        ft.GlobalAvgPool("pool"),
        ft.SoftmaxCrossEntropy(),
    ),
)

SMALL = {
    "resnet18": resnet18.network("small_resnet", 8, 10, width=16, blocks=(1, 2)),
    "resnet18, large images": resnet18.network("small_resnet_64", 33, 7, width=16, blocks=(1, 1)),
    "preact_resnet18": preact_resnet18.network("small_preact", 8, 10, width=16, blocks=(1, 2)),
    "resnext29_2x64d": resnext29_2x64d.network("small_resnext", 8, 10, width=16, blocks=(2, 1)),
    "mobilenet_v1": mobilenet_v1.network("small_mobile", 8, 10, width=16, blocks=((32, 1), (48, 2))),
    "mobilenet_v2": mobilenet_v2.network(
        "small_mobile2", 8, 10, width=16, stages=((1, 16, 1, 1), (2, 24, 2, 1), (2, 24, 2, 2)), last=48
    ),
    "mobilenet_v2, large images": mobilenet_v2.network(
        "small_mobile2_64", 34, 10, width=16, stages=((1, 16, 1, 1), (2, 24, 2, 2)), last=48
    ),
    "branches": BRANCHES,
    "starpu_cnn": convolutional_classifier("small_starpu", (3, 14, 19), (16, 20), 10, kernel=3),
    "dense": DENSE,
    "sigmoids": SIGMOIDS,
    "maps of classes": MAPS_OF_CLASSES,
}


def fill(bound, seed=0, rate=0.05):
    """Random parameters, images, labels and order; a learning rate."""
    initialise(bound, seed)
    rng = np.random.default_rng(seed)
    arrays = bound.arrays
    for name in bound.plan.attributes["parameters"]:
        if arrays[name].ndim == 1:
            arrays[name] += rng.normal(size=arrays[name].shape).astype(np.float32) * 0.2
    prefix = next(name for name in arrays if name.endswith("dataset.images")).removesuffix("dataset.images")
    images, labels, order = (arrays[prefix + name] for name in ("dataset.images", "dataset.labels", "batch_order"))
    images[...] = rng.normal(size=images.shape)
    labels[...] = rng.integers(bound.plan.attributes["num_classes"], size=labels.shape)
    order[...] = rng.integers(len(images), size=order.shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = rate
