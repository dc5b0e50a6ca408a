"""The table of convolutions: rows, what was picked, errors."""

import json

from forktask.experiments.cli import main


def test_table_names_every_algorithm_and_the_default(capsys):
    """Check that each pass of each shape has its rows, one of them picked, with errors near float32's."""
    command = ["convolutions", "--network", "resnet18", "--batch", "1", "--phase", "forward", "--seconds", "0"]
    assert main([*command, "--json", "--conv", "direct,winograd4"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    shapes = {(row["pass"], row["shape"]) for row in rows}
    assert len(shapes) > 8
    for shape in shapes:
        of_shape = [row for row in rows if (row["pass"], row["shape"]) == shape]
        assert sum(row["picked"] for row in of_shape) >= 1
        assert all(row["error"] < 1e-4 for row in of_shape)
    assert {"direct", "winograd4"} <= {row["algorithm"] for row in rows}


def test_unknown_algorithm_is_refused(capsys):
    """Check that a misspelt algorithm is one sentence and exit code 2."""
    assert main(["convolutions", "--conv", "fft"]) == 2
    assert "winograd4" in capsys.readouterr().err
