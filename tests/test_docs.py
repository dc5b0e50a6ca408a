"""What README and docs/ say is true: examples print what is shown, commands parse, links lead somewhere.

After a change that rightly changes what examples print (another lowering, say), run this file with the names of pages:
it writes what is printed now into their output blocks. Read the text around them again. Blocks marked `py` in place of
`python` are not run: they need what is not installed. Tables that follow from the code are written by
`docs/update_reference.py`.
"""

import contextlib
import importlib.util
import io
import json
import re
import shlex
import sys
import tempfile
from pathlib import Path

import pytest
from programs import run_python

from forktask.cython_src.binding.execution_model import ExecutionModel
from forktask.experiments.analysis.accounting import layers_of_all, summary_table
from forktask.experiments.analysis.estimates import LEAST_ROUNDS, MIN_GENERATIONS
from forktask.experiments.analysis.load import load
from forktask.experiments.commands.main import COMMANDS, FAULT_EXIT, UNSOUND_EXIT, USAGE_EXIT, make_parser
from forktask.experiments.results.grids import shipped
from forktask.experiments.studies.running import results_of
from forktask.experiments.studies.tables import epoch_table, run_table
from forktask.experiments.subjects.models import parse_models, read_model

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDERS = {
    "COMMAND": "compare",
    "DIR": "results",
    "FOLDER": "folder",
    "FILE.toml": "strong_scaling",
    "OTHER": "other",
    "FILE": "weights.safetensors",
}

# Runs a page's examples in one namespace and writes what each printed, as a JSON list.
RUN_EXAMPLES = """
import contextlib, io, json, sys
page, examples = json.load(sys.stdin)
namespace, printed = {"__name__": "__main__"}, []
for line, code in examples:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\\n" * line + code, page, "exec"), namespace)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def name_of(page: Path) -> str:
    """Path of a page below the repository, as the id of a test."""
    return page.relative_to(ROOT).as_posix()


def examples_of(text: str) -> list[tuple[int, str, str]]:
    """(line, code, expected output) of each python block; a block without an output block prints nothing."""
    examples: list[tuple[int, str, str]] = []
    for match in FENCE.finditer(text):
        if match[1] == "python":
            examples.append((text.count("\n", 0, match.start()) + 1, match[2], ""))
        elif match[1] == "output":
            assert examples and not examples[-1][2], f"an output block without code: {match[2]!r}"
            examples[-1] = (*examples[-1][:2], match[2])
    return examples


def run_examples(page: str, text: str, folder: Path) -> list[tuple[int, str, str]]:
    """(line, printed, expected) of each example, run in order in a fresh process in `folder`."""
    examples = examples_of(text)
    # Threads that sleep while idle: the examples are about results, and a busy machine runs them faster so.
    variables = {"OMP_WAIT_POLICY": "passive", "OMP_DYNAMIC": "false", "MPLBACKEND": "agg"}
    given = json.dumps([page, [e[:2] for e in examples]])
    done = run_python(RUN_EXAMPLES, variables=variables, input=given, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [(line, out, wanted) for (line, _, wanted), out in zip(examples, json.loads(done.stdout), strict=True)]


def commands_of(text: str) -> list[str]:
    """Command lines that begin with `forktask`: in indented blocks, fenced blocks without a language, and backticks."""
    fenced = "\n".join(match[2] for match in FENCE.finditer(text) if match[1] in ("", "sh", "bash", "console"))
    outside = FENCE.sub("", text)
    lines = [line.strip().removeprefix("$ ") for line in fenced.splitlines()]
    lines += [line.strip().removeprefix("$ ") for line in outside.splitlines() if line.startswith("    ")]
    lines += [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", outside)]
    return [line for line in lines if re.match(r"forktask( |$)", line)]


@pytest.mark.parametrize("page", [p for p in PAGES if examples_of(p.read_text())], ids=name_of)
def test_examples_print_what_the_page_shows(page, tmp_path):
    """Check that each python block runs, in order, and prints exactly the output block behind it."""
    for line, printed, expected in run_examples(str(page), page.read_text(), tmp_path):
        assert printed == expected, f"{name_of(page)}, line {line}"


def test_a_wrong_output_is_seen(tmp_path):
    """Check that an example that prints something else, or something where nothing is shown, is noticed."""
    text = "```python\nx = 1\nprint(x)\n```\n```output\n2\n```\n```python\nprint(x + 1)\n```\n"
    assert run_examples("page", text, tmp_path) == [(1, "1\n", "2\n"), (8, "2\n", "")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_parse(page, monkeypatch):
    """Check that every command line in a page is one that the program takes, where all models were built."""
    monkeypatch.setattr(ExecutionModel, "is_built", True)
    for command in commands_of(page.read_text()):
        words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command, comments=True)[1:]]
        if len(words) < 2:  # a name in running text
            assert not words or words[0].replace("-", "_") in (*COMMANDS, "--help", "--version"), command
            continue
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
                arguments = make_parser().parse_args(words)
        except SystemExit as stop:
            assert not stop.code, f"{name_of(page)}: {command}\n{errors.getvalue()}"
        else:
            models = getattr(arguments, "models", None) or getattr(arguments, "model", None) or "serial"
            models = models.split(",") if isinstance(models, str) else models
            own = [model for model in models if model.startswith("lib:")]  # whose files a page's reader builds
            parse_models(["serial", *(model for model in models if model not in own)])
            assert [str(read_model(model)) for model in own] == own


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_exist(page):
    """Check that relative links and images lead to files, and that anchors lead to headings."""
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{name_of(page)} links to {target}"


def update_reference():
    """The module docs/update_reference.py."""
    spec = importlib.util.spec_from_file_location("update_reference", ROOT / "docs" / "update_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(update_reference().TABLES))
def test_tables_of_the_reference_are_those_of_the_code(page):
    """Check that options, layers and networks in a page are what the code says; else run docs/update_reference.py."""
    text = (ROOT / "docs" / "reference" / page).read_text()
    assert update_reference().updated(page, text) == text


def test_the_index_names_every_page():
    """Check that docs/README.md leads to each page below docs/, the list of studies to each study."""
    docs = ROOT / "docs"
    linked = {
        (index.parent / target).resolve()
        for index in (docs / "README.md", docs / "studies.md")
        for target in re.findall(r"\]\(([^)#]+)\)", index.read_text())
    }
    pages = {page for page in PAGES if page.is_relative_to(docs) and page.parent.name != "site"}
    assert pages - {docs / "README.md"} <= linked


def test_notes_begin_with_what_was_found():
    """Check that each note states its finding first, then when it was measured; and that studies are short."""
    for note in (ROOT / "docs" / "notes").glob("*.md"):
        assert re.match(r"# .*\n\n\*\*Finding:\*\* ", note.read_text()), name_of(note)
        assert re.search(r"^\*\*Measured\*\* 2026-\d\d-\d\d", note.read_text(), re.MULTILINE), name_of(note)
    for page in (ROOT / "docs" / "studies").glob("*.md"):
        assert len(page.read_text().splitlines()) <= 60, name_of(page)


def test_the_page_of_studies_says_how_long_each_takes():
    """Check that every shipped sweep and study has a line with its duration and what of it was published."""
    table = (ROOT / "docs/studies.md").read_text().partition("## How long each takes")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line[:1] == "|")))
    assert named == {path.stem for kind in ("sweep", "study") for path in shipped(kind)}


def test_the_list_of_results_names_each_machine():
    """Check that the page of results says what each of its folders was measured on."""
    page = (ROOT / "results" / "README.md").read_text().partition("<!-- folders -->")[0]
    assert {folder.name for folder in (ROOT / "results").iterdir() if folder.is_dir()} <= {
        *re.findall(r"`(\w+)`", page)
    }


OTHER_WORDS = {
    r"\bhogs?\b|spinning process": "competing process",
    r"\d us\b": "µs",
    r"\b(ns|µs|ms|images|tokens|times|flops|tasks|blocks|rounds) a (second|step|task|cycle|loop|generation)\b": "per",
    r"\boptimis|\binitialising": "optimizer, initialize",
}


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.parent.name != "notes" and p.name != "CHANGELOG.md"], ids=name_of
)
def test_a_thing_has_one_word(page):
    """Check that pages use the glossary's words, not others for the same thing."""
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text()))
    for pattern, word in OTHER_WORDS.items():
        assert not (other := re.search(pattern, text)), f"{name_of(page)}: write {word!r}, not {other[0]!r}"


def test_every_column_of_a_table_is_explained():
    """Check that the dictionary of columns names each column of the tables of published results."""
    page = (ROOT / "docs/reference/tables.md").read_text()
    parts = dict(re.findall(r"^## `(\w+\.csv)`$(.*?)(?=^## |\Z)", page, re.M | re.S))
    sweep, study = ROOT / "results/epyc_2_cores/interference", ROOT / "results/xeon_2_cores/lenet5"
    results, samples = results_of(study), load(sweep)
    profiled = load(ROOT / "results/epyc_2_cores/gpt2_ladder")
    columns = {
        "summary.csv": [*summary_table(samples), *summary_table(profiled)],
        "layers.csv": [*layers_of_all(profiled)],
        "runs.csv": [name for row in run_table(results) for name in row if name not in results.study.axes],
        "epochs.csv": [name for name in epoch_table(results) if name not in results.study.axes],
    }
    for file, names in columns.items():
        known = {*re.findall(r"`(\w+)`", parts[file])}
        for name in dict.fromkeys(names):
            base = re.sub(r"_(low|high)$", "", name)
            if file == "summary.csv":
                base = re.sub("^(load|forward|backward|update)_(s|speedup|efficiency)$", r"PHASE_\2", base)
            base = re.sub(r"^time_to_.*", "time_to_ACCURACY", base)
            assert base in known, (file, name)


def test_each_finding_says_where_and_names_its_source():
    """Check that findings are numbered without a gap, that each of several sessions has a table of at most five rows,
    says where, elsewhere, repeat and data, and that the others lead to a note or a study."""
    page = (ROOT / "docs" / "findings.md").read_text()
    sections = re.findall(r"^## Finding (\d+)$(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", page, re.MULTILINE)
    assert [int(number) for number, _ in sections + rows] == list(range(1, len(sections + rows) + 1))
    for number, section in sections:
        assert re.search(r"^\*\*.*\.\*\*", section, re.MULTILINE), number
        assert "](studies/" in section or "*Data:* as" in section, number
        assert all(f"*{word}:*" in section for word in ("Where", "Elsewhere", "Repeat", "Data")), number
        assert len(re.findall(r"^\|", section, re.MULTILINE)) <= 2 + 5, number
    assert all("](notes/" in row or "](studies/" in row for _, row in rows)


def test_the_page_of_commands_has_each_of_them():
    """Check that each command has an example on the page of commands, and that its exit codes are the program's."""
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    words = {line.split()[1] for line in commands_of(page) if line != "forktask COMMAND --help"}
    assert {word.replace("-", "_") for word in words if not word.startswith("--")} == set(COMMANDS)
    codes = set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE))
    assert {str(code) for code in (0, USAGE_EXIT, UNSOUND_EXIT, FAULT_EXIT)} <= codes


def test_numbers_of_scaling_tests_are_those_of_the_code():
    """Check that the page has the least generations and rounds of a verdict, and the guide no others."""
    page, guide = (ROOT / "docs" / folder / "scaling_tests.md" for folder in ("reference", "guide"))
    assert f"at least {MIN_GENERATIONS} generations and {LEAST_ROUNDS} undisturbed rounds" in page.read_text()
    assert not re.findall(r"(\w+) (?:rounds|generations)", guide.read_text())


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_layout_names_every_folder():
    """Check that CONTRIBUTING's table has a row for each package of the sources and each folder of tests."""
    table = set(re.findall(r"`([\w/]+/)`", (ROOT / "CONTRIBUTING.md").read_text()))
    packages = {path.parent for part in ("cython_src", "experiments") for path in (ROOT / part).glob("*/__init__.py")}
    assert len(packages) > 10
    assert {name_of(folder) + "/" for folder in packages} <= table
    sources = {"cython_src", "experiments", "forkjoin", "tasking"}
    tests = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/*.py")}
    assert {f"{name}/" for name in tests - sources} <= table


def where_is_what():
    """Rows of CONTRIBUTING's section "Where is what": (what, files, name)."""
    section = re.search(
        r"^## Where is what\n(.*?)^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
    )
    rows = [line.split(" | ") for line in section[1].splitlines() if line.startswith("| ") and "`" in line]
    assert len(section[1].splitlines()) <= 46, "it must fit onto one screen"
    return [(what.removeprefix("| "), re.findall("`(.*?)`", files), name.strip("| `")) for what, files, name in rows]


def test_where_is_what_names_what_is_there():
    """Check that each file of the section exists and contains the name beside it."""
    for what, files, name in where_is_what():
        for file in files:
            assert name in (ROOT / file).read_text(), f"{what}: {name!r} in {file}"


@pytest.mark.parametrize(
    ("task", "words", "file"),
    [
        ("where is the barrier of the persistent region?", "barrier persistent", "forkjoin/persistent_region.h"),
        ("where does a new figure go?", "figure", "experiments/report/figures/__init__.py"),
        ("where is a kernel's inner loop for AVX-512?", "inner AVX-512", "cython_src/kernels/convolution/nhwc_loops.c"),
        ("which file has the steal of a task?", "steal task", "tasking/deque.h"),
        ("where is a new loss named?", "losses", "experiments/analysis/losses.py"),
        ("where does a new option of plans go?", "options plan", "cython_src/lowering/options.py"),
        ("where are dependences found?", "dependences", "cython_src/plan/dependences.pyx"),
        ("where does a new command go?", "command", "experiments/commands/main.py"),
        ("where is the field of a sample declared?", "rows samples", "experiments/results/rows.py"),
        ("which loop reads the clock?", "clock", "experiments/sampling/timing.py"),
        ("where is a new network named?", "list networks", "cython_src/networks/registry.py"),
        ("where is the interval of a ratio?", "intervals ratios", "experiments/analysis/estimates.py"),
        ("where does a kernel say what it costs?", "kernel costs", "cython_src/kernels/convolution/regions.py"),
        ("which buffers share memory?", "buffers memory", "cython_src/plan/cells.py"),
        ("how is AdamW's inner loop vectorised?", "inner loops", "cython_src/kernels/optimizer/optimizer_loops.c"),
        ("where is a misspelt option of a model refused?", "parsed", "experiments/subjects/models.py"),
        ("what does a small form leave out?", "--quick", "experiments/sweep/configuration.py"),
        ("where is a missing GPU refused?", "GPU there", "cython_src/gpu/device.py"),
        ("where are activations allocated?", "memory activations", "cython_src/binding/storage.py"),
    ],
)
def test_tasks_are_answered_by_the_section(task, words, file):
    """Check that a row with the words of the task names its file, and no more than two rows have them."""
    result = [files for what, files, _ in where_is_what() if all(word in what for word in words.split())]
    assert any(file in files for files in result) and len(result) <= 2, task


def update_outputs(page: Path) -> None:
    """Write what the examples of a page print into the output blocks behind them."""
    with tempfile.TemporaryDirectory() as folder:
        printed = iter(run_examples(str(page), page.read_text(), Path(folder)))
    current = ""

    def replace(match: re.Match) -> str:
        nonlocal current
        if match[1] == "python":
            current = next(printed)[1]
        return f"```output\n{current}```" if match[1] == "output" else match[0]

    page.write_text(FENCE.sub(replace, page.read_text()))


def test_the_first_page_is_short_and_names_the_place_for_bugs_alone():
    """Check that the README has at most 600 words and one figure, and that pages and messages that ask for reports of
    bugs name one place."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 600 and text.count("](docs/images/") == 1
    assert "Report a bug to whoever gave you this copy" in text
    sources = [path for folder in ("experiments", "api", "cython_src") for path in (ROOT / folder).rglob("*.py")]
    for path in (*PAGES, *sources):
        for match in re.finditer(r"report it\b.{0,60}", path.read_text()):
            assert "whoever gave you this copy" in match[0] or "README.md#" in match[0], (name_of(path), match[0])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        update_outputs(Path(name))
