"""Writes stored/cifar10_cnn_pytorch.npz: three SGD steps of the CIFAR-10 CNN as PyTorch computes them.

Run by hand where PyTorch is installed:  python tests/cython_src/networks/store_pytorch_values.py
Inputs and initial parameters come from integer arithmetic and are not stored. PyTorch computes in float64;
gradients of the first step and parameters after the third are stored as float32, losses as float64.
"""

from pathlib import Path

import numpy as np

PATH = Path(__file__).parent / "stored" / "cifar10_cnn_pytorch.npz"
BATCH, STEPS = 5, 3
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4
SHAPES = {
    "conv1.weight": (16, 3, 5, 5),
    "conv1.bias": (16,),
    "conv2.weight": (20, 16, 5, 5),
    "conv2.bias": (20,),
    "conv3.weight": (20, 20, 5, 5),
    "conv3.bias": (20,),
    "fc.weight": (10, 320),
    "fc.bias": (10,),
}


def pseudo_random(shape, salt):
    """Values in [-1, 1) from a multiplicative hash: float64, the same everywhere, exact in float32."""
    n = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mixed = ((n + np.uint64(salt)) * np.uint64(2654435761)) % np.uint64(1 << 32)
    mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(1 << 32)
    return ((mixed >> np.uint64(9)).astype(np.float64) / (1 << 22) - 1.0).reshape(shape)


def inputs():
    """Images (STEPS, BATCH, 3, 32, 32), labels (STEPS, BATCH) and parameters, exact in float32."""
    images = pseudo_random((STEPS, BATCH, 3, 32, 32), 1)
    labels = (np.arange(STEPS * BATCH) * 7 % 10).reshape(STEPS, BATCH)
    parameters = {}
    for salt, (name, shape) in enumerate(SHAPES.items()):
        scale = 0.05 if name.endswith("bias") else np.sqrt(6.0 / np.prod(shape[1:]))
        parameters[name] = (pseudo_random(shape, 1000 + salt) * scale).astype(np.float32).astype(np.float64)
    return images, labels, parameters


def pytorch_model(dtype):
    """The network as PyTorch's users write it."""
    from collections import OrderedDict

    from torch import nn

    layers = OrderedDict()
    channels = 3
    for i, out_channels in enumerate((16, 20, 20), start=1):
        layers[f"conv{i}"] = nn.Conv2d(channels, out_channels, 5, padding=2)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        channels = out_channels
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(320, 10)
    return nn.Sequential(layers).to(dtype)


def pytorch_steps(dtype):
    """Losses, gradients of each step and final parameters, as float64 arrays."""
    import torch

    images, labels, parameters = inputs()
    model = pytorch_model(dtype)
    model.load_state_dict({name: torch.tensor(value, dtype=dtype) for name, value in parameters.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    losses, gradients = [], []
    for x, t in zip(images, labels, strict=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(x, dtype=dtype)), torch.tensor(t))
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: p.grad.numpy().astype(np.float64) for name, p in model.named_parameters()})
        optimizer.step()
    final = {name: p.detach().numpy().astype(np.float64) for name, p in model.named_parameters()}
    return losses, gradients, final


def main():
    """Write the file."""
    import torch

    losses, gradients, final = pytorch_steps(torch.float64)
    arrays = {"losses": np.array(losses), "torch_version": np.array(torch.__version__)}
    for name in SHAPES:
        arrays[f"{name}.grad"] = gradients[0][name].astype(np.float32)
        arrays[f"{name}.final"] = final[name].astype(np.float32)
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
