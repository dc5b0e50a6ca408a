"""Plans of one's own: buffers, loops, blocks and accesses; the graph of their dependences; checks."""

from .cython_src.arguments import check_arguments
from .cython_src.binding.checks import AccessError, check_accesses, check_orders, find_unused_reads, span_in_tasks
from .cython_src.plan.builder import PlanBuilder, ranges
from .cython_src.plan.dependences import TaskGraph, record_graph
from .cython_src.plan.model import (
    ACCESS_KINDS,
    Access,
    Block,
    BlockLoop,
    Buffer,
    Plan,
    commutative,
    concurrent,
    read,
    reduction,
    update,
    write,
)

__all__ = [  # noqa: RUF022  in the order in which a reader needs them
    # building
    "PlanBuilder",
    "Block",
    "ranges",
    "read",
    "write",
    "update",
    "concurrent",
    "commutative",
    "reduction",
    # looking
    "Plan",
    "Buffer",
    "BlockLoop",
    "Access",
    "ACCESS_KINDS",
    "TaskGraph",
    "record_graph",
    "span_in_tasks",
    # checking
    "check_accesses",
    "find_unused_reads",
    "check_orders",
    "AccessError",
]

# Blocks and accesses come in tens of thousands; the loop that they are given to looks at them.
check_arguments(globals(), leave_out=("Block", "Access", "read", "write", "update", "concurrent", "commutative"))
