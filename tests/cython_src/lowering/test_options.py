"""Options of plans: what a row of results says of them, in records and in words."""

import pytest

from forktask.cython_src.lowering.options import PlanOptions, describe, format_value
from forktask.cython_src.records import fields


def test_differences_from_the_defaults_are_named():
    """Check the names and values in words, that defaults are silent, and that known fields can be left out."""
    options = PlanOptions(batch=16, conv="winograd", weight_gradients="chain", memory="shared", recompute=True)
    assert describe(PlanOptions()) == ""
    assert describe(options, leave_out=("batch",)) == (
        "weight_gradients chain, memory shared, conv winograd, recompute true"
    )
    assert describe(options).startswith("batch 16, ")
    assert describe(PlanOptions(betas=(0.5, 0.99), momentum=0.5)) == "momentum 0.5, betas 0.5,0.99"


@pytest.mark.parametrize("field", fields(PlanOptions), ids=lambda field: field.name)
def test_values_are_written_as_they_are_read(field):
    """Check that a default in words parses to itself."""
    assert field.parse(format_value(field.default)) == field.default
