"""A residual network with dropout, trained under two models, as a new user would write it."""

import forktask as ft


def network():
    return ft.Network("mine", (3, 16, 16), (
        ft.Conv2d("stem", 16, kernel=3, padding=1), ft.BatchNorm("bn0"), ft.ReLU("relu0"),
        ft.Conv2d("conv1", 16, kernel=3, padding=1), ft.BatchNorm("bn1"), ft.ReLU("relu1"),
        ft.Dropout("drop", 0.2),
        ft.Conv2d("conv2", 16, kernel=3, padding=1), ft.BatchNorm("bn2"),
        ft.Add("sum", ("bn2", "relu0")), ft.ReLU("relu2"),
        ft.GlobalAvgPool("pool"), ft.Linear("fc", 10), ft.SoftmaxCrossEntropy(),
    ))  # fmt: skip


if __name__ == "__main__":
    serial = ft.run(network(), model="serial", batch=8, iterations=4)
    tasks = ft.run(network(), model="taskiter", threads=2, batch=8, iterations=4)
    print(tasks)
    print("same weights:", ft.weights_hash(serial.bound) == ft.weights_hash(tasks.bound))
