"""A lower floor never imports a higher one, and what must be light stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"evolve", "evaluator", "translate_go", "archive", "simulator", "seeds", "configs"}
MAY_IMPORT = {
    "seeds": set(),
    "configs": set(),
    "simulator": {"numpy", "numba"} | {"pyarrow", "scipy"},  # the latter in simulator.kernels alone, see below
    "archive": {"deap"},
    "translate_go": {"simulator", "numpy"},
    "evaluator": {"simulator", "cma", "numpy", "numba", "scipy", "yaml"},
    "evolve": {"simulator", "archive", "translate_go", "evaluator", "numpy", "pyarrow", "yaml", "click", "rich"}
    | {"ijson", "orjson", "scipy"}  # of evolve.ingest: what traces are read with, and a least-squares fit
    | {"deap", "openevolve"}  # the baselines' engines
    | {"litellm"},  # of evolve.llm.client alone, see test_llm_calls
}


def imports(path: Path) -> set[str]:
    """Top-level names of everything a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            found.add((node.module or "").split(".")[0])
    return found - set(sys.stdlib_module_names)


@pytest.mark.parametrize("floor", sorted(MAY_IMPORT))
def test_no_floor_imports_a_higher_one(floor: str) -> None:
    files = list((ROOT / floor).rglob("*.py"))
    assert files
    for path in files:
        extra = imports(path) - MAY_IMPORT[floor] - {floor}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


def test_tables_of_measurements_are_read_in_one_package_of_the_simulator() -> None:
    for path in (ROOT / "simulator").rglob("*.py"):
        assert path.parent.name == "kernels" or not imports(path) & {"pyarrow", "scipy"}, path


def test_the_language_knows_only_the_schema_and_errors() -> None:
    for path in (ROOT / "simulator" / "language").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simulator"):
                allowed = ("simulator.language", "simulator.schema", "simulator.errors")
                assert node.module is not None and node.module.startswith(allowed), f"{path.name}: {node.module}"


def test_nothing_is_executed_outside_tests() -> None:
    for floor in OURS:
        for path in (ROOT / floor).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"{path}:{node.lineno}"


def test_help_imports_nothing_heavy() -> None:
    heavy = {"numpy", "numba", "pyarrow", "ijson", "orjson", "scipy", "yaml", "rich", "cma", "deap", "litellm", "openevolve"}
    code = (
        "import sys\nfrom evolve.cli import run_command\n"
        "assert run_command(['--help']) == 0 and run_command(['run', '--help']) == 0\n"
        f"print('HEAVY', sorted({heavy!r} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.splitlines()[-1] == "HEAVY []"
