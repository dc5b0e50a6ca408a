"""The files that a source file depends on: imports of Python and Cython, includes of C and CUDA.

What cannot be seen: modules that are found by listing a folder (`experiments/report/figures/__init__.py`), and names
that are put together from anything but a fixed beginning and a string of the same file.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cython_src", "forkjoin", "tasking", "experiments", "api")
PACKAGE = "forktask"
API = "api"  # the folder that installs as the package itself
EXAMPLES = "experiments/examples"  # programs as users write them: a folder of their own, above the API
INCLUDE_FOLDERS = (".", "tasking", "forkjoin")  # as in meson.build
PYTHON, CYTHON, C = (".py", ".pyi"), (".pyx", ".pxd", ".pxi"), (".c", ".h", ".hpp", ".cu", ".cuh")
SUFFIXES = (*PYTHON, *CYTHON, *C)

_TRIPLE = re.compile(r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'')
_COMMENT = re.compile(r"#[^\n]*")
_STATEMENT = r"(?:^|[;:])[ \t]*"
_FROM = re.compile(_STATEMENT + r"from[ \t]+(\.*[ \t]*[\w.]*)[ \t]+c?import[ \t]*(\([^)]*\)|[^\n;]*)", re.MULTILINE)
_IMPORT = re.compile(_STATEMENT + r"c?import[ \t]+([^\n;(]+)", re.MULTILINE)
_EXTERN = re.compile(_STATEMENT + r"(?:cdef[ \t]+extern[ \t]+from|include)[ \t]+[\"'<]+([^\"'>\n]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[\"<]([^\">\n]+)[\">]", re.MULTILINE)
_STRING = re.compile(r"[\"'](\.*\w+(?:\.\w+)*)[\"']")
_FUNCTION = re.compile(r"( *)(?:async def|def|cdef|cpdef)\b[^=]*?(\w+)\(")
_DYNAMIC = re.compile(r"\b(?:import_module|__import__)\(([^,()]+)")


class Sources:
    """The source files below a folder, and what each names.

    Parameters
    ----------
    root : Path
        Holds the folders of `FOLDERS`.
    """

    def __init__(self, root: Path = ROOT):
        self.root = root = root.resolve()
        self.files = {
            path.relative_to(root).as_posix()
            for folder in FOLDERS
            for path in (root / folder).rglob("*")
            if path.name.removesuffix(".in").endswith(SUFFIXES)
        }

    def edges(self) -> list[tuple[str, str]]:
        """Pairs of files: the first one depends on the second."""
        return sorted((file, target) for file in self.files for target in self.targets(file) if target != file)

    def targets(self, file: str) -> set[str]:
        """The files that a file names, as paths below the root."""
        text = re.sub(r"@\w+@", "0", (self.root / file).read_text())  # of templates
        name = file.removesuffix(".in")
        if name.endswith(C):
            return self._included(file, _INCLUDE.findall(text))
        code = _COMMENT.sub("", _TRIPLE.sub("", text)).replace("\\\n", " ")  # docstrings and comments name nothing
        result = {target for module in self._modules(file, code) for target in self._files_of(module)}
        if name.endswith(CYTHON):
            result |= self._included(file, [*_EXTERN.findall(code), *_INCLUDE.findall(text)])
        return result

    def _included(self, file: str, names: list[str]) -> set[str]:
        """Files of the tree among included names: beside the file, or below a folder that compilers search."""
        result = set()
        for name in names:
            for folder in (Path(file).parent, *map(Path, INCLUDE_FOLDERS)):
                path = (self.root / folder / name).resolve()
                if path.is_relative_to(self.root) and path.relative_to(self.root).as_posix() in self.files:
                    result.add(path.relative_to(self.root).as_posix())
                    break
        return result

    def _package_of(self, file: str) -> list[str]:
        """Names of the package that a file belongs to."""
        folders = Path(file).parent.parts
        return [PACKAGE, *(folders[1:] if folders[0] == API else folders)]

    def _absolute(self, file: str, module: str) -> str:
        """The absolute name of a module that a file calls `module`, with leading dots if that is relative."""
        name = module.lstrip(".").strip()
        level = len(module.strip()) - len(module.strip().lstrip("."))
        if not level:
            return name
        package = self._package_of(file)
        return ".".join([*package[: len(package) - level + 1], *([name] if name else [])])

    def _modules(self, file: str, code: str) -> set[str]:
        """Modules that Python or Cython names."""
        result = set()
        for module, names in _FROM.findall(code):
            chosen = [name.split()[0] for name in names.strip("()").split(",") if name.strip()]
            result.update(self._named(self._absolute(file, module), chosen))
        for names in _IMPORT.findall(code):
            result.update(name.split()[0] for name in names.split(",") if name.strip())
        prefixes = [_prefix(ast.parse(argument, mode="eval").body) for argument in _DYNAMIC.findall(code)]
        return result | self._dynamic(file, _STRING.findall(code), prefixes)

    def _named(self, module: str, names: list[str]) -> set[str]:
        """Modules that `from module import names` needs: submodules among the names, the module for all else."""
        return {f"{module}.{name}" if self._files_of(f"{module}.{name}") else module for name in names}

    def _dynamic(self, file: str, strings: list[str], prefixes: list[str]) -> set[str]:
        """Modules that a file may import by name: those among its strings that exist, behind the prefix of the call.

        Without a prefix a string counts if it has a dot: it begins with dots, which mean the file's package or the
        whole one, or is absolute.
        """
        result = set()
        for text in strings:
            for prefix in prefixes:
                if prefix:
                    candidates = [self._absolute(file, prefix + text)]
                elif "." in text:
                    candidates = [self._absolute(file, text), f"{PACKAGE}.{text.lstrip('.')}"]
                else:
                    candidates = []
                result.update(candidate for candidate in candidates if self._files_of(candidate))
        return result

    def _files_of(self, module: str) -> list[str]:
        """Files of a module, of which Cython's have several; of a package its `__init__`; none for others."""
        if module.endswith("_c"):  # written by the build from the headers and specs of a folder of kernels
            folder = f"cython_src/kernels/{module[:-2]}/"
            return [file for file in self.files if file.startswith(folder) and file.endswith(".h")]
        package, _, path = module.partition(".")
        if package != PACKAGE:
            return []
        path = path.replace(".", "/")
        stem = path if path.split("/")[0] in FOLDERS else f"{API}/{path}".rstrip("/")
        names = [f"{stem}{part}{end}" for part in ("", "/__init__") for end in (*PYTHON, ".py.in", ".pyx", ".pxd")]
        return [name for name in names if name in self.files]


def _prefix(argument: ast.expr) -> str:
    """What stands before the variable part of the name in `import_module(argument)`, such as "." in f".{name}"."""
    if isinstance(argument, ast.JoinedStr):
        first = argument.values[0]
        if isinstance(first, ast.Constant):
            return first.value
        if isinstance(first, ast.FormattedValue) and ast.unparse(first.value) in ("__name__", "__package__"):
            return "."
    return ""


def arrows(edges: list[tuple[str, str]]) -> dict[str, dict[str, dict[str, str]]]:
    """Return folder -> entry -> other entry of the same folder -> an example of a dependency between them.

    The entries of a folder are its folders and its files. A module and its declarations are one entry.
    """
    result: dict[str, dict[str, dict[str, str]]] = {}
    for source, target in edges:
        a, b = (entries(file) for file in (source, target))
        depth = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if depth is not None:
            examples = result.setdefault("/".join(a[:depth]), {}).setdefault(a[depth], {})
            examples.setdefault(b[depth], f"{source} names {target}")
    return result


def entries(file: str) -> tuple[str, ...]:
    """Return the folders that lead to a file, and its own entry."""
    path = Path(file.removesuffix(".in"))
    if path.is_relative_to(EXAMPLES):
        return EXAMPLES, *path.with_suffix("").relative_to(EXAMPLES).parts
    return path.with_suffix("" if path.suffix in (*PYTHON, *CYTHON) else path.suffix).parts


def find_cycle(graph: dict[str, dict[str, str]]) -> list[str]:
    """Examples of the dependencies that close a cycle; none: there is no cycle."""
    state: dict[str, bool] = {}  # False: on the way, True: done
    way: list[str] = []

    def visit(node: str) -> list[str]:
        state[node] = False
        way.append(node)
        for other in sorted(graph.get(node, ())):
            if state.get(other) is False:
                cycle = [*way[way.index(other) :], other]
                return [graph[x][y] for x, y in itertools.pairwise(cycle)]
            if other not in state and (cycle := visit(other)):
                return cycle
        state[node] = True
        way.pop()
        return []

    return next((cycle for node in sorted(graph) if node not in state and (cycle := visit(node))), [])


def function_lengths(text: str) -> Iterator[tuple[str, int]]:
    """Name and lines of each function of Python or Cython code, without blank lines behind it."""
    lines = text.split("\n")
    for start, line in enumerate(lines):
        if (result := _FUNCTION.match(line)) is None:
            continue
        length = 1
        for number, other in enumerate(lines[start + 1 :], 2):
            inside = other.startswith((result[1] + " ", result[1] + ")"))
            if other.strip() and not inside:
                break
            length = number if other.strip() else length
        yield result[2], length
