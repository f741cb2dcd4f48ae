"""A lower floor never imports a higher one, rooms do not reach into each other both ways, and light things stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from paths import ROOT
from tiny_world import BRIEF, ONE, write

# The lowest floor first. A module imports its own room and the rooms of lower floors, nothing else of the project.
# A room is a package, or a single module where it is named here; the longest name that fits counts.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("seeds", "configs", "simulator.common", "simulator.schema"),
    ("simulator.language", "simulator.model"),
    ("archive",),
    ("evolve", "evolve.output", "simulator.kernels"),
    ("simulator.serving",),
    ("simulator.clock",),
    ("evaluator", "translate_go"),
    ("evolve.run",),
    ("evolve.plan", "evolve.summary"),
    ("evolve.search",),
    ("evolve.ingest", "evolve.validate"),
    ("evolve.calibrate",),
    ("evolve.host", "evolve.inspect"),
    ("evolve.draw", "evolve.export", "evolve.report"),
    ("evolve.api", "evolve.cli", "evolve.engines"),
    ("evolve.__main__", "research"),
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
PACKAGES = ("seeds", "configs", "simulator", "archive", "translate_go", "evaluator", "evolve", "research")
# What each package may use of others' libraries.
LIBRARIES = {
    "seeds": set(),
    "configs": set(),
    "simulator": {"numpy", "numba"}
    | {"yaml"}  # of simulator.common.documents alone
    | {"pyarrow", "scipy"},  # see test_tables_are_read_in_two_packages_of_the_simulator
    "archive": {"deap", "numpy"},
    "translate_go": {"numpy"},
    "evaluator": {"cma", "numpy", "numba", "scipy", "yaml"}
    | {"optuna", "sklearn", "threadpoolctl"},  # of evaluator.fit.trees, inside functions
    "evolve": {"numpy", "pyarrow", "yaml", "click", "rich", "scipy"}
    | {"ijson", "orjson"}  # of evolve.ingest: what traces are read with
    | {"gepa", "openevolve"}  # of evolve.engines alone
    | {"httpx", "litellm"}  # of evolve.search.llm.client alone, see test_llm_calls
    | {"bm25s"}  # of evolve.search.llm.library alone
    | {"bibtexparser", "pypdf"}  # of evolve.search.llm.sources alone
    | {"dask", "distributed"}  # of evolve.search.pool.cluster and evolve.search.pool.remote
    | {"matplotlib", "pandas", "plotly", "sympy"},  # of api, draw, and formulas
    "research": {"click", "deap", "numpy", "pandas", "scipy", "yaml", "optuna", "sklearn"},
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


class Source(NamedTuple):
    """What a module imports and calls."""

    imported: frozenset[str]  # full names, wherever it imports them; of a name in a module of ours, the module's
    within: tuple[tuple[int, str], ...]  # line and name of each import inside a function
    called: tuple[tuple[int, str], ...]  # line and name of each call of a plain name


@cache
def source(path: Path) -> Source:
    """A module, read once for all tests."""
    found: set[str] = set()
    within: list[tuple[int, str]] = []
    called: list[tuple[int, str]] = []

    def walk(node: ast.AST, in_function: bool) -> None:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found.update(names)
            within.extend((node.lineno, name) for name in names if in_function)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            ours = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
            found.update(ours or {node.module or ""})
            within.extend([(node.lineno, node.module or "")] * in_function)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.append((node.lineno, node.func.id))
        for child in ast.iter_child_nodes(node):
            walk(child, in_function or isinstance(node, ast.FunctionDef))

    walk(ast.parse(path.read_text()), False)
    return Source(frozenset(found), tuple(within), tuple(called))


def imported(path: Path) -> frozenset[str]:
    return source(path).imported


def room_of(module: str) -> str:
    parts = module.split(".")
    return next(name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in LEVEL)


def test_every_module_is_in_a_room() -> None:
    for module in MODULES:
        if module not in PACKAGES:
            assert room_of(module)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_floor_imports_a_higher_one(package: str) -> None:
    for module, path in MODULES.items():
        if module.split(".")[0] != package or module in PACKAGES:
            continue
        mine = room_of(module)
        for name in imported(path) & set(MODULES):
            theirs = room_of(name)
            assert theirs == mine or LEVEL[theirs] < LEVEL[mine], f"{module} imports {name}, of floor {theirs}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_uses_its_own_libraries_only(package: str) -> None:
    for module, path in MODULES.items():
        if module.split(".")[0] == package:
            tops = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names) - set(PACKAGES)
            assert tops <= LIBRARIES[package], f"{module} imports {sorted(tops - LIBRARIES[package])}"


def test_no_modules_import_each_other() -> None:
    arrows = {module: imported(path) & set(MODULES) - {module} for module, path in MODULES.items()}
    seen: dict[str, int] = defaultdict(int)  # 1: on the way that is being walked, 2: done

    def walk(module: str, way: tuple[str, ...]) -> None:
        assert seen[module] != 1, f"a circle of imports: {' -> '.join((*way, module))}"
        if seen[module] == 0:
            seen[module] = 1
            for name in sorted(arrows[module]):
                walk(name, (*way, module))
            seen[module] = 2

    for module in MODULES:
        walk(module, ())


def test_tables_are_read_in_two_packages_of_the_simulator() -> None:
    for path in (ROOT / "simulator").rglob("*.py"):
        tops = {name.split(".")[0] for name in imported(path)}
        assert path.parent.name in ("kernels", "traces") or not tops & {"pyarrow", "scipy"}, path


def test_the_product_has_no_import_of_research() -> None:
    for module, path in MODULES.items():
        names = {name.split(".")[0] for name in imported(path)}
        assert module.split(".")[0] == "research" or "research" not in names, module


def test_imports_stand_at_the_top_of_a_module() -> None:
    """But for what a user need not have installed or takes seconds to load, and the door, which must be quick."""
    allowed = {
        "bibtexparser",
        "bm25s",
        "litellm",
        "httpx",
        "openevolve",
        "cma",
        "dask",
        "distributed",
        "evolve",
        "optuna",
        "pypdf",
        "sklearn",
        "threadpoolctl",
    }
    for module, path in MODULES.items():
        for line, name in source(path).within:
            assert name.split(".")[0] in allowed, f"{module}:{line} imports {name} in a function"
            assert not name.startswith("evolve") or module == "evolve.__main__"


def test_nothing_is_executed_outside_tests() -> None:
    for module, path in MODULES.items():
        for line, name in source(path).called:
            assert name not in ("eval", "exec", "compile", "__import__"), f"{module}:{line}"


def modules_after(code: str) -> set[str]:
    """Top-level names of the modules that are loaded after this code ran in a fresh interpreter."""
    report = "\nimport sys\nprint('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(out.stdout.splitlines()[-1].split()[1:])


def test_help_imports_nothing_heavy() -> None:
    heavy = "numpy numba pyarrow ijson orjson scipy yaml rich cma deap litellm openevolve"
    loaded = modules_after("from evolve.cli import run_command\nassert run_command(['--help']) == 0")
    assert not loaded & set(heavy.split())


def test_an_offline_run_imports_no_library_of_language_models_and_no_rival(tmp_path: Path) -> None:
    config = str(write(tmp_path, ONE, **BRIEF))
    options = ["--config", config, "--out", str(tmp_path / "run"), "--budget=9", "--workers=1", "--quiet"]
    loaded = modules_after(f"from evolve.cli import run_command\nassert run_command({['run', *options]}) == 0")
    rivals = "litellm bm25s bibtexparser pypdf openevolve matplotlib plotly sympy jinja2 dask distributed sklearn"
    assert not loaded & set(rivals.split())
    assert "cma" in loaded  # which would load matplotlib
    assert "numba" in loaded  # as it would be of any run
