"""Every name of `forktask`, by purpose; the first use of one of them loads this module."""

from . import kernels, plans, runtimes
from .comparison import Comparison, Ratio, compare
from .cython_src.arguments import check_arguments
from .cython_src.binding.bind import BlockFailure, BoundPlan
from .cython_src.binding.storage import Storage
from .cython_src.errors import UsageError
from .cython_src.graphs.task_functions import TaskFunction, task
from .cython_src.graphs.user_graph import ITERATION, Region, TaskArray
from .cython_src.lowering import PlanOptions, initialise, lower
from .cython_src.networks import layers
from .cython_src.networks.layers import *  # noqa: F403
from .cython_src.networks.registry import get_network, network_names
from .cython_src.targets import bind
from .experiments.commands.diagnose import diagnose
from .experiments.commands.evaluate import evaluate
from .experiments.commands.functions import Result
from .experiments.commands.info import info
from .experiments.commands.metg import metg
from .experiments.commands.simulate import simulate
from .experiments.commands.trace import Trace, trace
from .experiments.commands.train import train
from .experiments.events.events import EventLog, read_events
from .experiments.peers.from_torch import from_torch
from .experiments.peers.torch_check import TorchCheck, check_against_torch
from .experiments.training.data import load_data
from .experiments.training.dataset import Dataset
from .experiments.training.safetensors import read_safetensors, write_safetensors
from .kernels import get_include
from .running import Executor, Run, executor, fit, model_names, run, weights_hash
from .user_graph import UserGraph

# In the order in which a reader needs them.
__all__: list[str] = []
__all__ += layers.__all__  # networks
__all__ += [  # noqa: RUF022
    "get_network",
    "network_names",
    "from_torch",
    "check_against_torch",
    "TorchCheck",
    # a plan and its memory
    "PlanOptions",
    "lower",
    "bind",
    "BoundPlan",
    "Storage",
    "initialise",
    # running it
    "executor",
    "Executor",
    "Run",
    "run",
    "fit",
    "model_names",
    "weights_hash",
    # measuring
    "compare",
    "Comparison",
    "Ratio",
    "trace",
    "Trace",
    "metg",
    "info",
    "train",
    "evaluate",
    "Result",
    "simulate",
    "diagnose",
    # data and weights
    "load_data",
    "Dataset",
    "read_events",
    "EventLog",
    "read_safetensors",
    "write_safetensors",
    # graphs of one's own
    "UserGraph",
    "TaskArray",
    "Region",
    "ITERATION",
    "task",
    "TaskFunction",
    # plans, kernels and runtimes of one's own
    "plans",
    "kernels",
    "runtimes",
    "get_include",
    # errors
    "UsageError",
    "BlockFailure",
]

# Names that other packages have for what a network consists of.
ELSEWHERE = {
    "Conv2D": "Conv2d",
    "Convolution": "Conv2d",
    "Dense": "Linear",
    "FullyConnected": "Linear",
    "BatchNormalization": "BatchNorm",
    "AvgPool2d": "AveragePool",
    "AdaptiveAvgPool2d": "GlobalAvgPool",
    "GlobalAveragePooling2D": "GlobalAvgPool",
    "Flatten": "Linear",
    "MultiheadAttention": "Attention",
    "CrossEntropyLoss": "SoftmaxCrossEntropy",
    "Softmax": "SoftmaxCrossEntropy",
    "Sequential": "Network",
    "Module": "Network",
}

check_arguments(globals(), leave_out=("get_include", "Region"))
