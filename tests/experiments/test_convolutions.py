"""The table of convolutions: rows, what was picked, errors."""

import json

from forktask.experiments.commands.main import main


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


def test_table_of_images_in_the_lanes(capsys):
    """Check that each pass of the small network has a row for each form, and that no form is far from float64."""
    from forktask.cython_src.kernels.convolution.lanes_forms import FORMS

    command = ["convolutions", "--network", "cifar10_cnn", "--batch", "16", "--seconds", "0", "--conv", "all"]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["pass"] for row in rows} == {"forward", "data", "weights"}
    for name in {row["layers"][0] for row in rows}:
        of_loop = {row["algorithm"]: row for row in rows if row["layers"] == [name]}
        assert set(of_loop) == {"direct", "winograd", *FORMS}
        assert sum(row["picked"] for row in of_loop.values()) == 1
        assert all(row["error"] < (1e-4 if form == "winograd" else 1e-5) for form, row in of_loop.items())
    assert main([*command[:5], "--seconds", "0", "--conv", "direct"]) == 0
    assert "conv2.data_gradient" not in capsys.readouterr().out.splitlines()[0]


def test_unknown_algorithm_is_refused(capsys):
    """Check that a misspelt algorithm is one sentence and exit code 2."""
    assert main(["convolutions", "--conv", "fft"]) == 2
    assert "winograd4" in capsys.readouterr().err
