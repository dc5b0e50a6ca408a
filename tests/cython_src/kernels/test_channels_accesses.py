"""Every kernel with the channels in the lanes, in one plan: blocks touch and need what they declare."""

import numpy as np
import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses, check_orders, find_unused_reads
from forktask.cython_src.kernels.maps.channels import ChannelsMap, statistics_shape
from forktask.cython_src.plan.builder import PlanBuilder, block_grid, ranges
from forktask.cython_src.plan.model import Block, read, update, write

BATCH, CHANNELS, SIZE = 2, 19, 6
RATES, IMAGES = 3, 5


class Step:
    """A step that uses each kernel: not a network that learns, but one in which every result is used."""

    def __init__(self):
        self.builder = PlanBuilder("all kernels")
        self.image_ranges = ranges(BATCH, 1)
        self.channel_ranges = ranges(CHANNELS, 16)
        self.count = 0

    def map(self, name, height=SIZE, halo=0, channels=CHANNELS, image=False):
        m = ChannelsMap(name, BATCH, channels, height, height, halo, image)
        self.builder.buffer(name, m.shape)
        return m

    def buffer(self, name, *shape, dtype="float32", role="activation", **options):
        return self.builder.buffer(name, shape, dtype, role, **options)

    def vectors(self, name, *kinds):
        return {kind: self.buffer(f"{name}.{kind}", 32) for kind in kinds}

    def loop(self, name, operands, blocks, **attributes):
        self.count += 1
        self.builder.loop(f"{self.count} {name}", name, operands, blocks, attributes=attributes)

    def boxes(self, m, channels=True):
        """Blocks of images, two pieces of rows, and channels, with bounds and how to name parts of maps."""
        cut = self.channel_ranges if channels else [(0, m.channels)]
        return block_grid(self.image_ranges, ranges(m.height, max(1, m.height // 2)), cut)

    def elementwise(self, name, m, maps, outputs, vectors=(), channels=True, updates=(), extra=None, **attributes):
        """A loop over boxes of equal geometry: `maps` by operand, those in `outputs` written, in `updates` updated."""
        operands = {operand: a.name for operand, a in maps.items()} | dict(vectors)
        blocks = []
        for n, y, c in self.boxes(m, channels):
            box = m.channel_box(*c)
            accesses = []
            for operand, a in maps.items():
                if operand in outputs:
                    accesses.append(write(a.name, n, a.written_rows(*y), (0, a.columns), box))
                else:
                    kind = update if operand in updates else read
                    inside = (a.halo, a.halo + a.width)
                    accesses.append(kind(a.name, n, a.interior_rows(*y), inside, box))
            accesses += [read(buffer, *([(0, 3)] if "coefficients" in buffer else []), box) for _, buffer in vectors]
            bounds = (*n, *y, *c) if channels else (*n, *y)
            if extra:
                buffer, rows = extra
                operands["partials"] = buffer
                accesses.append(write(buffer, (len(blocks), len(blocks) + 1), (0, rows), box))
                bounds += (len(blocks),)
            blocks.append(Block(bounds, tuple(accesses)))
        halos = {f"{operand}_halo": a.halo for operand, a in maps.items() if operand not in ("input", "first")}
        halos = {("out_halo" if k == "output_halo" else k): v for k, v in halos.items()}
        self.loop(
            name,
            operands,
            blocks,
            **m.attributes("in"),
            **{**attributes, **{k: v for k, v in halos.items() if k in attributes}},
        )

    def window(
        self,
        name,
        source,
        target,
        kernel,
        stride,
        padding,
        operands,
        backward=False,
        index=None,
        partials=None,
        statistics=None,
        weight=None,
        **attributes,
    ):
        """A pooling or depthwise loop over boxes of the target; the halo is not read."""
        operands = dict(operands)
        blocks = []
        for n, y, c in self.boxes(target):
            box = target.channel_box(*c)
            if backward:  # windows that the rows lie in
                rows = -(-(y[0] + padding - kernel + 1) // stride), (y[1] - 1 + padding) // stride + 1
            else:
                rows = y[0] * stride - padding, (y[1] - 1) * stride - padding + kernel
            reach = source.halo if weight else 0  # pooling leaves the halo alone
            rows = max(rows[0], -reach), min(rows[1], source.height + reach)
            columns = (source.halo - reach, source.halo + source.width + reach)
            accesses = [read(source.name, n, source.interior_rows(*rows), columns, box)]
            accesses.append(write(target.name, n, target.written_rows(*y), (0, target.columns), box))
            if index:
                of = (rows, (0, source.width)) if backward else (y, (0, target.width))
                accesses.append((read if backward else write)(index, n, *of, box))
                operands["index"] = index
            if weight:
                accesses.append(read(weight, c))
            bounds = (*n, *y, *c)
            if partials is not None:
                number = n[0] * 2 + (y[0] > 0)
                if statistics:
                    accesses.append(write(statistics, (number, number + 1), (0, 3), box))
                bounds += (number,)
            blocks.append(Block(bounds, tuple(accesses)))
        if statistics:
            operands["statistics"] = statistics
        maps = {**source.attributes("in"), **target.attributes("out")}
        self.loop(name, operands, blocks, **maps, kernel=kernel, stride=stride, padding=padding, **attributes)

    def build(self):
        b = self.builder
        parameter, statistic = {"role": "parameter"}, {"role": "statistic"}
        depth = self.buffer("depth", CHANNELS, 1, 3, 3, **parameter)
        gamma, beta = (self.buffer(n, CHANNELS, **parameter) for n in ("gamma", "beta"))
        running = {f"running_{n}": self.buffer(f"running_{n}", CHANNELS, **statistic) for n in ("mean", "var")}

        # Load, depthwise convolution with statistics, normalisation with a residual.
        source = self.map("source", halo=1)
        operands = {
            "images": self.buffer("images", IMAGES, CHANNELS, SIZE, SIZE, role="dataset"),
            "dataset_labels": self.buffer("dataset_labels", IMAGES, dtype="int32", role="dataset"),
            "batch_order": self.buffer("batch_order", 2, BATCH, dtype="int32", role="table"),
            "output": source.name,
            "labels": self.buffer("labels", BATCH, 1, dtype="int32", role="input"),
        }
        blocks = [
            Block(
                n,
                (
                    read(operands["images"]),
                    read(operands["dataset_labels"]),
                    read(operands["batch_order"]),
                    write(source.name, n),
                    write(operands["labels"], n),
                ),
            )
            for n in self.image_ranges
        ]
        self.loop(
            "channels_load_images",
            operands,
            blocks,
            **source.attributes("out"),
            batch=BATCH,
            num_batches=2,
            num_images=IMAGES,
        )
        z = self.map("z")
        parts = self.buffer("parts", *statistics_shape(2 * BATCH, 32))
        self.window(
            "channels_depthwise_forward",
            source,
            z,
            3,
            1,
            1,
            {"input": source.name, "weight": depth, "output": z.name},
            partials=True,
            statistics=parts,
            weight=depth,
            activation=0,
        )
        again = self.buffer("again", *statistics_shape(2 * BATCH, 32))
        self.elementwise("channels_norm_statistics", z, {"input": z}, (), channels=False, extra=(again, 3))
        norm = self.vectors("norm", "scale", "shift", "mean", "inv_std")

        def by_channels(name, reads, writes, updates=(), rows=None, **attributes):
            """A loop over channels: operand -> buffer."""
            blocks = []
            for c in self.channel_ranges:
                padded = (c[0], 32 if c[1] == CHANNELS else c[1])
                accesses = []
                for group, kind in ((reads, read), (writes, write), (updates, update)):
                    for buffer in dict(group).values():
                        shape = b._buffers[buffer].shape
                        cut = padded if shape[-1] == 32 else c
                        accesses.append(kind(buffer, *((0, n) for n in shape[:-1]), cut))
                blocks.append(Block(c, tuple(accesses)))
            self.loop(name, {**dict(reads), **dict(writes), **dict(updates)}, blocks, channels=CHANNELS, **attributes)

        affine = {"weight": gamma, "bias": beta}
        by_channels(
            "channels_norm_finish",
            {"partials": parts, **affine},
            norm,
            running,
            num_partials=2 * BATCH,
            count=BATCH * SIZE**2,
            eps=1e-5,
            momentum=0.1,
        )
        second = self.vectors("second", "scale", "shift")
        by_channels("channels_norm_evaluate", {**affine, **running}, second, eps=1e-5)
        y = self.map("y", halo=1)
        vectors = list({"scale": norm["scale"], "shift": norm["shift"]}.items())
        self.elementwise(
            "channels_norm_apply",
            z,
            {"input": z, "residual": source, "output": y},
            ("output",),
            vectors,
            residual_halo=1,
            out_halo=1,
            activation=2,
        )
        plain = self.map("plain")
        vectors = list({"scale": second["scale"], "shift": second["shift"]}.items())
        self.elementwise(
            "channels_norm_apply",
            z,
            {"input": z, "output": plain},
            ("output",),
            vectors,
            residual_halo=0,
            out_halo=0,
            activation=1,
        )
        # Sum, activation, dropout, pooling.
        total = self.map("total", halo=2)
        self.elementwise(
            "channels_add",
            y,
            {"first": y, "second": plain, "output": total},
            ("output",),
            second_halo=0,
            out_halo=2,
            activation=1,
        )
        active = self.map("active")
        self.elementwise(
            "channels_activation", total, {"input": total, "output": active}, ("output",), out_halo=0, activation=2
        )
        dropped = self.map("dropped", halo=1)
        self.elementwise(
            "channels_dropout",
            active,
            {"input": active, "output": dropped},
            ("output",),
            channels=False,
            out_halo=1,
            seed=3,
            layer=1,
            rate=0.25,
        )
        largest, mean = self.map("largest", 3), self.map("average", 2)
        index = self.buffer("index", BATCH, 3, 3, 32, dtype="uint8")
        self.window(
            "channels_max_pool", dropped, largest, 3, 2, 1, {"input": dropped.name, "output": largest.name}, index=index
        )
        self.window("channels_average_pool", largest, mean, 2, 1, 0, {"input": largest.name, "output": mean.name})
        pooled = self.buffer("pooled", BATCH, CHANNELS, 1)
        blocks = [
            Block((*n, *c), (read(mean.name, n, (0, 2), (0, 2), c), write(pooled, n, c)))
            for n, c in block_grid(self.image_ranges, self.channel_ranges)
        ]
        self.loop("channels_global_pool", {"input": mean.name, "output": pooled}, blocks, **mean.attributes("in"))

        # Backward.
        dmean, dlargest = self.map("dmean", 2), self.map("dlargest", 3, halo=1)
        blocks = [
            Block(
                (*n, *y_, *c),
                (read(pooled, n, c), write(dmean.name, n, dmean.written_rows(*y_), (0, 2), dmean.channel_box(*c))),
            )
            for n, y_, c in self.boxes(dmean)
        ]
        self.loop(
            "channels_global_pool_backward",
            {"gradient": pooled, "output": dmean.name},
            blocks,
            **dmean.attributes("out"),
            accumulate=0,
        )
        self.window(
            "channels_average_pool_backward",
            dmean,
            dlargest,
            2,
            1,
            0,
            {"gradient": dmean.name, "output": dlargest.name},
            backward=True,
            accumulate=0,
        )
        ddropped = self.map("ddropped")
        self.window(
            "channels_max_pool_backward",
            dlargest,
            ddropped,
            3,
            2,
            1,
            {"gradient": dlargest.name, "output": ddropped.name},
            backward=True,
            index=index,
            accumulate=0,
        )
        dactive = self.map("dactive")
        self.elementwise(
            "channels_dropout",
            ddropped,
            {"input": ddropped, "output": dactive},
            ("output",),
            channels=False,
            out_halo=0,
            seed=3,
            layer=1,
            rate=0.25,
        )
        dtotal = self.map("dtotal")
        self.elementwise(
            "channels_activation_backward",
            dactive,
            {"gradient": dactive, "activations": active, "output": dtotal},
            ("output",),
            activations_halo=0,
            out_halo=0,
            activation=2,
            accumulate=0,
        )
        dy, dplain = self.map("dy"), self.map("dplain", halo=1)
        self.elementwise(
            "channels_add_backward",
            dtotal,
            {"gradient": dtotal, "activations": total, "first": dy, "second": dplain},
            ("first", "second"),
            activations_halo=2,
            first_halo=0,
            second_halo=1,
            activation=1,
            accumulate_first=0,
            accumulate_second=0,
        )
        sums = self.buffer("sums", 2 * BATCH, 2, 32)
        vectors = list({"mean": norm["mean"], "inv_std": norm["inv_std"]}.items())
        self.elementwise(
            "channels_norm_backward_statistics",
            z,
            {"gradient": dy, "activations": y, "input": z},
            (),
            vectors,
            channels=False,
            extra=(sums, 2),
            gradient_halo=0,
            activations_halo=1,
            activation=2,
        )
        results = {
            "gradient_weight": self.buffer("dgamma", 1, CHANNELS),
            "gradient_bias": self.buffer("dbeta", 1, CHANNELS),
            "coefficients": self.buffer("coefficients", 3, 32),
        }
        by_channels(
            "channels_norm_backward_finish",
            {"partials": sums, "weight": gamma, "inv_std": norm["inv_std"]},
            results,
            num_partials=2 * BATCH,
            count=BATCH * SIZE**2,
            evaluation=0,
        )
        dz = self.map("dz", halo=1)
        vectors = list({"mean": norm["mean"], "coefficients": "coefficients"}.items())
        self.elementwise(
            "channels_norm_backward_apply",
            z,
            {"gradient": dy, "activations": y, "input": z, "output": dz, "branch": dplain},
            ("output",),
            vectors,
            updates=("branch",),
            gradient_halo=0,
            activations_halo=1,
            out_halo=1,
            branch_halo=1,
            activation=2,
            accumulate_branch=1,
        )
        dsource = self.map("dsource")
        self.window(
            "channels_depthwise_backward_data",
            dz,
            dsource,
            3,
            1,
            1,
            {"gradient": dz.name, "weight": depth, "output": dsource.name},
            backward=True,
            weight=depth,
            accumulate=0,
        )
        ddepth = self.buffer("ddepth", 2 * BATCH, CHANNELS, 9)
        blocks = []
        for n, rows, c in self.boxes(dz):
            number, box = n[0] * 2 + (rows[0] > 0), dz.channel_box(*c)
            blocks.append(
                Block(
                    (*n, *rows, *c, number),
                    (
                        read(dz.name, n, dz.interior_rows(*rows), (1, 1 + SIZE), box),
                        read(source.name, n, (rows[0], rows[1] + 2), (0, source.columns), box),
                        write(ddepth, (number, number + 1), c),
                    ),
                )
            )
        self.loop(
            "channels_depthwise_backward_weights",
            {"gradient": dz.name, "input": source.name, "output": ddepth},
            blocks,
            **dz.attributes("gradient"),
            **source.attributes("in"),
            kernel=3,
            stride=1,
            padding=1,
            accumulate=0,
        )

        # Update: clipped Adam for the convolution, SGD for the normalisation.
        size = CHANNELS * 9
        flat = {"partial_stride": size, "row_length": size, "row_stride": size, "row_offset": 0}
        rates = self.buffer("rates", RATES, role="table")
        state = {"role": "optimizer_state"}
        gradient = self.buffer("gradient", CHANNELS, 9, role="gradient", carried=True)
        squares = self.buffer("squares", 2)
        pieces = [(c, (9 * c[0], 9 * c[1])) for c in self.channel_ranges]
        self.loop(
            "gradient_sum",
            {"partials": ddepth, "gradient": gradient, "squares": squares},
            [
                Block((*e, i), (read(ddepth, (0, 2 * BATCH), c), write(gradient, c), write(squares, (i, i + 1))))
                for i, (c, e) in enumerate(pieces)
            ],
            num_partials=2 * BATCH,
            **flat,
        )
        scale, log = self.buffer("clip", 1), self.buffer("norm_log", 2, role="log")
        self.loop(
            "gradient_scale",
            {"squares": squares, "scale": scale, "norm_log": log},
            [Block((), (read(squares), write(scale), update(log)))],
            num_squares=2,
            length=2,
            max_norm=0.01,
        )
        moments = {f"{n}_moment": self.buffer(f"{n}_moment", CHANNELS, 9, **state) for n in ("first", "second")}
        operands = {"gradient": gradient, "parameter": depth, **moments, "learning_rates": rates, "scale": scale}
        self.loop(
            "optimizer_adam",
            operands,
            [
                Block(
                    e,
                    (
                        read(gradient, c),
                        update(depth, c),
                        *(update(m, c) for m in moments.values()),
                        read(rates),
                        read(scale),
                    ),
                )
                for c, e in pieces
            ],
            num_partials=0,
            **flat,
            num_rates=RATES,
            decoupled=1,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.01,
        )
        flat = {"partial_stride": CHANNELS, "row_length": CHANNELS, "row_stride": CHANNELS, "row_offset": 0}
        for parameter_name, partial in (("gamma", "dgamma"), ("beta", "dbeta")):
            velocity = self.buffer(f"{parameter_name}.velocity", CHANNELS, **state)
            kept = self.buffer(f"{parameter_name}.grad", CHANNELS, role="gradient", carried=True)
            operands = {"partials": partial, "gradient": kept, "parameter": parameter_name, "velocity": velocity}
            self.loop(
                "optimizer_sgd",
                {**operands, "learning_rates": rates},
                [
                    Block(
                        c,
                        (
                            read(partial, (0, 1), c),
                            write(kept, c),
                            update(parameter_name, c),
                            update(velocity, c),
                            read(rates),
                        ),
                    )
                    for c in self.channel_ranges
                ],
                num_partials=1,
                **flat,
                num_rates=RATES,
                momentum=0.9,
                weight_decay=0.01,
            )
        return b.build()


def fill(bound):
    rng = np.random.default_rng(0)
    for buffer in bound.plan.buffers.values():
        array = bound.arrays[buffer.name]
        if buffer.persistent and array.dtype.kind == "f":
            array[...] = rng.uniform(0.1, 1.0, array.shape)
    bound.arrays["images"][...] = 4 * rng.standard_normal(bound.arrays["images"].shape)
    bound.arrays["dataset_labels"][...] = rng.integers(0, 9, IMAGES)
    bound.arrays["batch_order"][...] = rng.integers(0, IMAGES, (2, BATCH))


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_kernels_touch_what_they_declare(target):
    """Check accesses on poisoned memory, and that no declared read is idle."""
    plan = Step().build()
    check_accesses(plan, target, initialise=fill, num_replays=2, blocks_per_loop=6)
    if target == "cpu":  # NumPy forms of depthwise convolutions do without the halo
        assert find_unused_reads(plan, target, initialise=fill, num_replays=2, blocks_per_loop=6) == []


def test_random_orders_give_the_same_bits():
    """Check that random legal orders of the compiled kernels, iterations overlapping, leave the serial run's bits."""
    bound = bind(Step().build(), target="cpu")
    fill(bound)
    check_orders(bound, num_orders=20, num_replays=2)
