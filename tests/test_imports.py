"""Who may import whom. The three processes stay apart only as long as their modules do.

The static rules read every source file with `ast`; imports inside functions and `TYPE_CHECKING` blocks, and literal
names given to importlib, count too. The dynamic ones look at what fresh interpreters really load.
"""

from __future__ import annotations

import ast
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import ROOT, run_cli, run_python

MODEL_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
PICKLES = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
LOADERS = ("import_module", "__import__", "run_module")
MAX_LINES = 400


def sources(package: str) -> list[Path]:
    """Every module of a package; a missing package is a broken checkout, not an empty rule."""
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no sources in {package}"
    return found


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import in `source`; `from a import b` counts as `a` and as `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            target = node.args[0]
            if name in LOADERS and isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield node.lineno, target.value


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def offences(paths: list[Path], forbidden: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    """`file:line: name` of every import of something forbidden."""
    found = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        for line, name in imports(path.read_text(encoding="utf-8"), package_of(path))
        if is_within(name, forbidden) and not is_within(name, allowed)
    }
    return sorted(found)


def test_the_reader_sees_every_form_of_import() -> None:
    source = (
        "import a.b as c\nfrom d import e\ndef f():\n    import g\n    importlib.import_module('h.i')\n"
        "from . import j\nfrom .k import l\nfrom .. import m\n__import__('n')\nimport_module(variable)\n"
    )
    names = {name for _, name in imports(source, "p.q")}
    assert names == {"a.b", "d", "d.e", "g", "h.i", "p.q", "p.q.j", "p.q.k", "p.q.k.l", "p", "p.m", "n"}
    assert is_within("torch.nn", ("torch",))
    assert not is_within("torchlike", ("torch",))


@pytest.mark.parametrize("package", ["engine_proc", "submitter_proc"])
def test_children_import_only_the_common_part_of_the_harness(package: str) -> None:
    other = "submitter_proc" if package == "engine_proc" else "engine_proc"
    assert offences(sources(package), ("harness", other), allowed=("harness.common",)) == []


def test_harness_imports_neither_child() -> None:
    assert offences(sources("harness"), ("engine_proc", "submitter_proc")) == []


def test_common_imports_nothing_above_it() -> None:
    """What all three processes share must not pull the rest of the harness into the children by a detour."""
    assert offences(sources("harness/common"), ("harness",), allowed=("harness.common",)) == []


@pytest.mark.parametrize("package", ["harness", "submitter_proc"])
def test_model_libraries_stay_in_the_engine(package: str) -> None:
    assert offences(sources(package), MODEL_LIBRARIES) == []


def test_scheduler_and_pools_import_no_torch() -> None:
    """They are plain data structures: testable by the thousand, and the same for every backend."""
    assert offences(sources("engine_proc/scheduling"), MODEL_LIBRARIES) == []


@pytest.mark.parametrize("package", ["harness", "engine_proc", "submitter_proc"])
def test_no_pickle_anywhere(package: str) -> None:
    assert offences(sources(package), PICKLES) == []
    allowed_true = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword)
        and (
            (node.arg == "allow_pickle" and not is_false(node.value))
            or (node.arg == "weights_only" and is_false(node.value))
        )
    ]
    assert allowed_true == []


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_no_module_grows_without_bound() -> None:
    lengths = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n")
        for package in ("harness", "engine_proc", "submitter_proc")
        for path in sources(package)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def modules_of(package: str) -> list[str]:
    """Dotted names of all modules of a package."""
    found = pkgutil.walk_packages([str(ROOT / package)], f"{package}.", onerror=lambda _name: None)
    return [package, *(module.name for module in found)]


def loaded_model_libraries(code: str) -> list[str]:
    """The model libraries in `sys.modules` of a fresh interpreter after `code`."""
    show = f"import json, sys; print(json.dumps([name for name in {MODEL_LIBRARIES!r} if name in sys.modules]))"
    loaded: list[str] = json.loads(run_python(f"{code}\n{show}").splitlines()[-1])
    return loaded


@pytest.mark.parametrize("package", ["harness", "submitter_proc"])
def test_no_module_loads_a_model_library(package: str) -> None:
    """Also not through a third-party package that it imports."""
    assert loaded_model_libraries("\n".join(f"import {name}" for name in modules_of(package))) == []


def test_null_engine_modules_load_no_torch() -> None:
    loaded = loaded_model_libraries("import engine_proc.__main__, engine_proc.backends.null, engine_proc.tokenize")
    assert not {"torch", "transformers"} & set(loaded)


def test_a_null_run_loads_no_torch_in_any_process(tmp_path: Path) -> None:
    """Nor does the tokenizer of the default model, which raw requests need with the null engine too."""
    seen = spy_on_imports(tmp_path)
    done = run_cli(
        ["--engine", "null", "--num-requests", "4", "--rate", "100", "--warmup-runs", "0", "--allow-invalid", "--out",
         tmp_path / "result"],
        cwd=tmp_path,
        env=seen.env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert seen.processes() >= 3, "the spy must have been in all three processes"
    assert seen.names() & {"torch", "transformers"} == set()


class ImportSpy:
    """Writes down every top-level package that a process and its children import, by an audit hook at start-up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "sitecustomize.py").write_text(
            "import os, sys\n"
            f"file = open(os.path.join({str(folder)!r}, f'{{os.getpid()}}.imports'), 'a', buffering=1)\n"
            "seen = set()\n"
            "def hook(event, args):\n"
            "    if event == 'import':\n"
            "        name = args[0].partition('.')[0]\n"
            "        if name not in seen:\n"
            "            seen.add(name)\n"
            "            file.write(name + '\\n')\n"
            "sys.addaudithook(hook)\n"
        )

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{self._folder}:{ROOT}"}

    def processes(self) -> int:
        return len(list(self._folder.glob("*.imports")))

    def names(self) -> set[str]:
        return {name for path in self._folder.glob("*.imports") for name in path.read_text().split()}


def spy_on_imports(tmp_path: Path) -> ImportSpy:
    folder = tmp_path / "spy"
    folder.mkdir()
    return ImportSpy(folder)
