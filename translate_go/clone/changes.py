"""All edits of a clone of the host that register a backend: each place is found before the first is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.common.errors import InputError
from translate_go.clone.docs import with_row, with_section
from translate_go.clone.factory import builds_instances, check_functions, config_fields, with_case, with_options
from translate_go.clone.moved import Backend, moved
from translate_go.clone.names import (
    has_flag,
    known_names,
    with_counted_name,
    with_help,
    with_name,
    with_parsing,
    with_resolution,
)
from translate_go.target import MODULE

PACKAGE = "sim/latency"  # where emitted files go
FACTORY = f"{PACKAGE}/latency.go"
NAMES = "sim/bundle.go"
NAMES_TEST = "sim/bundle_test.go"
INSTANCES = "sim/cluster/instance.go"
CONFIG = "sim/config.go"
COMMAND = "cmd/root.go"
GUIDE = "docs/guide/latency-models.md"
REFERENCE = "docs/reference/configuration.md"


def changes(root: Path, backend: Backend, emitted: Mapping[str, str]) -> dict[str, str]:
    """Path in the clone at `root` -> new text of each file that registers the backend. Nothing is written.

    `emitted` are the files of package latency, name -> text. Raises InputError at the first place that is not as
    expected, or if the backend is there already.
    """
    host = _Host(root)
    if f"module {MODULE}\n" not in host.text("go.mod"):
        raise InputError(f"{root / 'go.mod'}: is not that of module {MODULE}: give a clone of the host")
    host.edit(FACTORY, lambda path, text: with_case(path, text, backend))
    check_functions(PACKAGE, host.below(PACKAGE))
    known = known_names(NAMES, host.text(NAMES))
    host.edit(NAMES, lambda path, text: with_name(path, text, backend))
    host.edit(NAMES_TEST, lambda path, text: with_counted_name(path, text, backend, known))
    if backend.settings:
        _pass_settings(host, backend)
    command = host.below("cmd")
    if not any(has_flag(path, text) for path, text in command.items()):
        raise moved(COMMAND, "definition of the flag --latency-model")
    for path in command:
        host.edit(path, lambda path, text: with_help(path, text, backend))
    if backend.wired:
        _wire(host, backend, command)
    [file] = [name for name in emitted if name.endswith(".go") and f"type {backend.exported} struct" in emitted[name]]
    host.edit(GUIDE, lambda path, text: with_section(path, text, backend, file))
    host.edit(REFERENCE, lambda path, text: with_row(path, text, backend))
    for name, text in emitted.items():
        path = f"{PACKAGE}/{name}"
        if (root / path).exists():
            raise InputError(f"{path}: is there already: choose another --name")
        host.changed[path] = text
    return host.changed


class _Host:
    """The files of a clone, with the changes so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: dict[str, str] = {}

    def text(self, path: str) -> str:
        """The file with its changes. Raises InputError if it cannot be read."""
        if path in self.changed:
            return self.changed[path]
        try:
            return (self.root / path).read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            raise moved(path, "readable text there") from None

    def below(self, folder: str) -> dict[str, str]:
        """Path -> text of the Go files in the folder itself, tests apart."""
        names = sorted(p.name for p in (self.root / folder).glob("*.go") if not p.name.endswith("_test.go"))
        return {path: self.text(path) for path in (f"{folder}/{name}" for name in names)}

    def edit(self, path: str, change: Callable[[str, str], str]) -> bool:
        """Whether the change, a function of path and text, makes the file another."""
        before = self.text(path)
        after = change(path, before)
        if after != before:
            self.changed[path] = after
        return after != before


def _pass_settings(host: _Host, backend: Backend) -> None:
    config = config_fields(CONFIG, host.below("sim"))
    builders = [path for path, text in host.below("sim/cluster").items() if builds_instances(path, text)]
    if not builders:
        raise moved(INSTANCES, "call of latency.NewLatencyModel in the package that builds instances")
    for path in builders:
        host.edit(path, lambda path, text: with_options(path, text, backend, config, CONFIG))


def _wire(host: _Host, backend: Backend, command: Mapping[str, str]) -> None:
    resolved = [path for path in command if host.edit(path, lambda path, text: with_resolution(path, text, backend))]
    if not resolved:
        raise moved(COMMAND, 'block `if backend == "roofline"` that calls resolveModelConfig')
    parsed = [path for path in command if host.edit(path, lambda path, text: with_parsing(path, text, backend))]
    if not parsed:
        raise moved(COMMAND, 'condition `backend == "roofline" || backend == "trained-physics"`')
