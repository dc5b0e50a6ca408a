"""Networks from modules of PyTorch: what is read, that it computes the same, and how all else is refused."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import forktask as ft
from experiments.peers import torch_modules
from forktask.experiments.peers import from_torch, torch_check
from forktask.experiments.plan_check.checking import check_plans

pytestmark = pytest.mark.torch
IMAGES, TOKENS = torch.zeros(1, 3, 12, 12), torch.zeros(1, 16, dtype=torch.int64)


def chain(*parts):
    """Some modules, and a head on the means of their maps."""
    channels = [p.out_channels for p in parts if isinstance(p, nn.Conv2d)][-1:] or [3]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[0], 5))


class Calls(nn.Module):
    """A module that applies a function to what a convolution gives, before a head."""

    def __init__(self, function, *parts):
        super().__init__()
        self.conv, self.head, self.function, self.parts = (
            nn.Conv2d(3, 4, 3),
            nn.Linear(4, 5),
            function,
            nn.ModuleList(parts),
        )

    def forward(self, x):
        return self.head(self.function(self.conv(x), *self.parts).mean((2, 3)))


def check(module, example, **options):
    """The module and its network agree; returns the check."""
    torch.manual_seed(1)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    checked = ft.check_against_torch(module, example, **options)
    assert checked.agrees, checked.table.to_string()
    return checked


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_residual_network_computes_what_its_module_does(optimizer):
    """Check loss, gradients, statistics and a step: grouped and depthwise convolutions, norms, both pools, dropout in
    the middle, an activation that two layers read, sums in place."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding="same", bias=False), nn.BatchNorm2d(8)
            self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8, momentum=0.3)
            self.conv3, self.relu = nn.Conv2d(8, 8, 1, groups=2), nn.ReLU(inplace=True)
            self.pool, self.drop = nn.MaxPool2d(3, 2, 1), nn.Dropout(0.3)
            self.fc1, self.fc2 = nn.Linear(8 * 9, 16), nn.Linear(16, 5)

        def forward(self, x):
            x = self.relu(self.bn1(self.conv1(x)))
            y = functional.relu6(self.bn2(self.conv2(x)))
            y = self.conv3(y)
            y += x
            x = functional.avg_pool2d(self.pool(self.relu(y)), 2)
            return self.fc2(torch.sigmoid(self.fc1(torch.flatten(self.drop(x), 1))))

    checked = check(Net(), IMAGES, optimizer=optimizer)
    assert set(checked.table["quantity"]) == {"loss", "gradients", "parameters", "statistics"}
    assert list(checked.table["type"].unique()) == ["float64", "float32"]
    network = ft.from_torch(Net(), IMAGES, name="residual")
    assert (network.name, network.input_shape) == ("residual", (3, 12, 12))
    names = {layer.name for layer in network.layers}
    assert {"conv1", "relu", "relu_1", "relu6", "add", "pool", "avgpool", "drop", "fc2"} <= names | {"avgpool"}
    assert network.num_parameters == sum(p.numel() for p in Net().parameters())
    assert any(isinstance(layer, ft.Dropout) and layer.rate == 0.3 for layer in network.layers)


@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_layers_of_pytorch_are_read_whatever_the_order_of_axes(batch_first):
    """Check attention whose queries, keys and values are one product, with samples first or tokens first."""
    checked = check(torch_modules.LanguageModel(batch_first), TOKENS)
    attention = [layer for layer in checked.network.layers if isinstance(layer, ft.Attention)]
    assert [layer.causal for layer in attention] == [True, True]
    embedding = checked.network.layers[0]
    assert isinstance(embedding, ft.Embedding) and embedding.positions == "position"


def test_a_linear_layer_without_bias_is_that_of_tokens_alone():
    """Check that lowering refuses one of images in a sentence, and so does the check of `from_torch`."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(432, 5, bias=False))
    network = ft.from_torch(module, IMAGES, check=False)
    for refused in (lambda: ft.lower(network, batch=2), lambda: ft.from_torch(module, IMAGES)):
        with pytest.raises(ft.UsageError, match="linear layers of images must have a bias, got '1' without"):
            refused()


def test_vectors_and_a_loss_that_takes_log_probabilities_are_read():
    """Check a module of linear layers alone, and that a log-softmax at the end belongs to the loss."""
    layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.LogSoftmax(dim=-1))
    assert check(layers, torch.zeros(1, 6)).network.input_shape == (6, 1, 1)


def test_weights_come_along_and_the_module_stays_as_it_is():
    """Check that the plan's first forward pass has the module's answers, and that modes and parameters stay."""
    torch.manual_seed(2)
    module = chain(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    module[1].train()
    module[1].running_mean.uniform_()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network, weights = ft.from_torch(module, IMAGES, weights=True)
    assert [part.training for part in module.modules()] == [False, False, True, *[False] * 4]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    bound = ft.bind(ft.lower(network, batch=4, phase="forward"))
    ft.initialise(bound, weights=weights)
    images = np.random.default_rng(1).standard_normal((4, 3, 12, 12)).astype(np.float32)
    bound.arrays["dataset.images"][...] = images
    bound.arrays["batch_order"][...] = np.arange(4)
    with ft.executor("serial") as executor:
        executor.prepare(bound)
        executor.run(1)
    expected = module.eval()(torch.from_numpy(images)).softmax(1).detach()
    np.testing.assert_allclose(bound.view("probabilities"), expected, atol=1e-5)
    with pytest.raises(ft.UsageError, match="weights must be those of the network, and 'conv9.weight'"):
        ft.initialise(bound, weights={"conv9.weight": images})


def test_a_network_that_computes_something_else_does_not_agree(monkeypatch):
    """Check that the comparison sees another activation."""
    read = from_torch.read_module

    def wrong(*arguments):
        network, parts = read(*arguments)
        layers = [ft.Sigmoid(la.name) if isinstance(la, ft.ReLU) else la for la in network.layers]
        return replace(network, layers=tuple(layers)), parts

    module = chain(nn.Conv2d(3, 4, 3), nn.ReLU())
    assert ft.check_against_torch(module, IMAGES).agrees
    monkeypatch.setattr(torch_check, "read_module", wrong)
    checked = ft.check_against_torch(module, IMAGES)
    assert not checked.agrees and "DOES NOT agree" in repr(checked)


class Tied(nn.Module):
    """A language model without attention."""

    def __init__(self, **arguments):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8, **arguments), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(functional.gelu(self.embed(tokens), approximate="tanh"))


def test_a_tied_head_is_one():
    """Check the head that multiplies with the embedding's weights."""
    assert isinstance(check(Tied(), TOKENS).network.layers[-2], ft.TiedHead)


REFUSED = {
    "silu": (
        chain(nn.Conv2d(3, 4, 3), nn.SiLU()),
        "silu in '1' (SiLU): no activation that exists has its values; use ReLU",
    ),
    "cat": (Calls(lambda x: torch.cat([x, x], 1)[:, :4]), "cat in Calls: no layer computes it; add tensors instead"),
    "product": (
        Calls(lambda x, c: x * c(x), nn.Conv2d(4, 4, 1)),
        "mul in Calls: of two tensors only the sum is a layer",
    ),
    "shapes": (Calls(lambda x, c: x + c(x), nn.Conv2d(4, 1, 1)), "add in Calls: the tensors have different shapes"),
    "twice": (
        Calls(lambda x, c: c(c(x)), nn.Conv2d(4, 4, 1)),
        "conv2d in 'parts.0' (Conv2d): parameter 'parts.0.weight'",
    ),
    "order": (Calls(lambda x, c: c(x.transpose(2, 3)), nn.Conv2d(4, 4, 1)), "it does not read the maps of a layer"),
    "kernel": (
        chain(nn.Conv2d(3, 4, (1, 3))),
        "conv2d in '0' (Conv2d): kernel differs in both directions; use the same",
    ),
    "ceil": (
        chain(nn.MaxPool2d(3, 2, ceil_mode=True)),
        "must have results of shape (3, 5, 5), got (3, 6, 6); leave out",
    ),
    "affine": (
        chain(nn.BatchNorm2d(3, affine=False)),
        "batch_norm in '0' (BatchNorm2d): weights or running statistics",
    ),
    "pool": (chain(nn.AdaptiveAvgPool2d(5)), "it neither keeps 12 x 12 pixels nor takes their mean; use AvgPool2d"),
    "flat": (
        nn.Sequential(nn.Linear(12, 5)),
        "linear in '0' (Linear): it does not read all features of a sample; flatten",
    ),
    "answer": (nn.Conv2d(3, 4, 3), "the answer is no layer's output as it is; return logits"),
    "control": (
        Calls(lambda x: x if x.sum() > 0 else -x),
        "torch.export must trace a module before it can be read, and Calls, test_from_torch.py:",
    ),
    "shape": (
        nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(12, 5))),
        "before it can be read, and '1.0' (Linear) fails: ",
    ),
}


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (
            Tied(padding_idx=0),
            "embedding in 'embed' (Embedding): gradients of its rows are not those of all their tokens",
        ),
        (torch_modules.LanguageModel(dropout=0.1), "attention has dropout; set that to 0"),
        (torch_modules.Recurrent(), "lstm in 'lstm' (LSTM): no layer computes it"),
    ],
    ids=["padding", "dropout", "lstm"],
)
def test_what_is_no_layer_of_tokens_is_refused(module, sentence):
    """Check rows without a gradient, dropout within attention, and recurrence."""
    with pytest.raises(ft.UsageError) as refused:
        ft.from_torch(module, TOKENS)
    assert sentence in str(refused.value)


def test_other_arguments_are_refused():
    """Check something that is no module, samples that are none, and a masked network without its mask."""
    for arguments, sentence in (
        ((3, IMAGES), "from_torch takes a torch.nn.Module, got int"),
        ((chain(), IMAGES[0]), "got shape (3, 12, 12) of torch.float32; give such"),
        ((chain(), TOKENS[0]), "got shape (16,) of torch.int64; give such"),
    ):
        with pytest.raises(ft.UsageError) as refused:
            ft.from_torch(*arguments)
        assert sentence in str(refused.value)
    for function in (ft.from_torch, ft.check_against_torch):
        for wrong in ({"mask": "x"}, {"example": 1}):
            with pytest.raises(ft.UsageError, match=f"(mask of|arguments of) {function.__name__} "):
                function(chain(), IMAGES, **wrong)


@pytest.mark.zoo
def test_the_guide_shows_what_comes_out():
    """Check the table of modules; see `torch_modules`."""
    assert torch_modules.TABLE.search(torch_modules.PAGE.read_text())[0] == torch_modules.table()


class Frozen(nn.BatchNorm2d):
    """A norm that keeps its statistics, and freezes what it can reach."""

    def train(self, mode=True):
        self.weight.requires_grad_(False)
        return super().train(False)


class Held(nn.Module):
    """A convolution by a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("held", torch.randn(3, 3, 3, 3))

    def forward(self, x):
        return functional.conv2d(x, self.held)


def without_gradient(x, part):
    with torch.no_grad():
        return part(x)


def with_half(x, part):
    with torch.autocast("cpu", torch.bfloat16):
        return part(x)


def changed_later(x):
    view = x.flatten(1).view(x.shape)
    x.mul_(2)
    return view


def hooked():
    module = chain(nn.Conv2d(3, 4, 3))
    module[0].weight.register_hook(lambda gradient: 2 * gradient)
    return module


UNREADABLE = {
    "in place": (Calls(changed_later), "mul in Calls: in place on a tensor that is read later, or a view of it"),
    "frozen": (chain(nn.Conv2d(3, 4, 3), Frozen(4)), "batch_norm in '1' (Frozen): it takes running statistics"),
    "detach": (Calls(lambda x: x + x.detach()), "detach in Calls: no gradient passes it"),
    "hook": (hooked(), "gradients of a network from PyTorch must have no hooks, got one of '0.weight'; remove it"),
    "expand": (
        Calls(lambda x, part: functional.conv2d(x, part.weight[:, :1].expand(4, 4, 3, 3)), nn.Conv2d(1, 4, 3)),
        "elements of parameter 'parts.0.weight' are repeated",
    ),
    "rand": (Calls(lambda x: x * (torch.rand(1) > 0.3)), "rand in Calls: it draws random numbers; use Dropout"),
    "random": (Calls(lambda x: x * (random.random() > -1)), "must not draw random numbers of Python or NumPy"),
    "batch": (Calls(lambda x: x * (x.shape[0] / 3)), "and Calls is misunderstood: results of 'head' are the first"),
    "no_grad": (Calls(without_gradient, nn.Conv2d(4, 4, 3)), "set_grad_enabled in Calls: it changes how"),
    "autocast": (Calls(with_half, nn.Conv2d(4, 4, 3)), "wrap_with_autocast in Calls: it changes how"),
    "constant": (chain(Held()), "conv2d in '0' (Held): a weight is computed, or a constant"),
}


@pytest.mark.parametrize("name", [*REFUSED, *UNREADABLE])
def test_what_is_no_layer_or_cannot_be_understood_is_refused_in_a_sentence(name):
    """Check that operation, path and class of the module, reason and remedy are named, also of what was once accepted
    as another network, or ended in a traceback; flags and random states stay."""
    module, sentence = (REFUSED | UNREADABLE)[name]
    parameters = [parameter.requires_grad_(True) for parameter in module.parameters()]
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    with pytest.raises(ft.UsageError) as refused:
        ft.from_torch(module, IMAGES)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in parameters)
    assert states[0] == random.getstate() and torch.equal(states[1], torch.get_rng_state())
    assert np.array_equal(states[2], np.random.get_state()[1])


@pytest.mark.parametrize("change", ["tokens", "rows", "bias"])
def test_parts_of_parameters_are_compared(change):
    """Check tokens that are computed, a head on other rows than the embedding's, and a bias within the weight."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(20, 8))

        def forward(self, x):
            y = functional.embedding((x + 1) % 11 if change == "tokens" else x, self.w[:11])
            rows = self.w[5:16] if change == "rows" else self.w[:11]
            return functional.linear(y, rows, rows[:, 0] if change == "bias" else None)

    expected = {"tokens": "the tokens as they are", "rows": "other elements of the embedding's", "bias": ""}[change]
    with pytest.raises(ft.UsageError, match=expected):
        ft.from_torch(Net(), TOKENS)


def test_a_refusal_of_the_check_names_the_first_layer_that_differs(monkeypatch):
    """Check a network of which a layer in the middle is another one; and that a module stays as it is."""
    read = from_torch.read_module

    def wrong(*arguments):
        network, parts = read(*arguments)
        layers = [replace(la, eps=0.1) if la.name == "4" else la for la in network.layers]
        return replace(network, layers=tuple(layers)), parts

    first, second = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    module = chain(*first, nn.ReLU(), *second, nn.Conv2d(4, 4, 3)).eval()
    module[0].weight.requires_grad_(False)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    assert not ft.from_torch(module, IMAGES).unchecked
    monkeypatch.setattr(from_torch, "read_module", wrong)
    with pytest.raises(ft.UsageError, match="and Sequential is misunderstood: results of '4' are the first to differ"):
        ft.from_torch(module, IMAGES)
    assert ft.from_torch(module, IMAGES, check=False).unchecked
    assert not module.training and all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert [p.requires_grad for p in module.parameters()].count(False) == 1


def test_a_large_network_is_compared_in_float32(monkeypatch, capsys):
    """Check that the slow kernels are not used, that a line says what is done, and that a difference is found."""
    monkeypatch.setattr(torch_check, "SLOW_FLOPS", 0)
    ft.from_torch(chain(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), IMAGES)
    assert "comparing Sequential with PyTorch" in capsys.readouterr().err
    with pytest.raises(ft.UsageError, match="is misunderstood.* in float32"):
        ft.from_torch(Calls(lambda x: x * (x.shape[0] / 3)), IMAGES)


def test_parameters_of_bfloat16_become_float32():
    """Check weights of a module in a type that NumPy has not."""
    module = chain(nn.Conv2d(3, 4, 3)).bfloat16()
    _, weights = ft.from_torch(module, IMAGES.bfloat16(), weights=True)
    assert {array.dtype for array in weights.values()} == {np.dtype("float32")}
    assert np.array_equal(weights["0.weight"], module[0].weight.detach().float().numpy())


def test_rows_say_that_a_network_was_not_compared():
    """Check the outcome that rows of samples have, also of the network as a program."""
    network = ft.from_torch(chain(nn.Conv2d(3, 4, 3)), IMAGES, check=False)
    assert check_plans([({"network": network, "batch": 4}, [])], False) == ["not compared with PyTorch"]
    assert check_plans([({"network": replace(network, unchecked=False), "batch": 4}, [])], False) == ["left out"]
