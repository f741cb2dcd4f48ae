"""All edits of a clone of the host that register a backend: each place is found before the first is written.

The edits of Go that builds the backend, and of the documentation, are here; those of its name are in `names`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from simulator.common.errors import InputError
from translate_go.clone import names as name_edits
from translate_go.clone import prose as prose_edits
from translate_go.clone.registered import Backend, already
from translate_go.clone.scan import GoFile, Span, edited, moved, read
from translate_go.naming import fact
from translate_go.refusal import FILE, check_call, check_file, check_test
from translate_go.target import CONFIG_FIELDS, FORMULAS, HOST_FUNCTIONS, LOGGER, MODULE, TARGETS
from translate_go.templates import sections

_TEXT = sections("host_guide")

PACKAGE = "sim/latency"  # where emitted files go
FACTORY = f"{PACKAGE}/latency.go"
NAMES = "sim/bundle.go"
NAMES_TEST = "sim/bundle_test.go"
SEAM = "sim/latency/register.go"  # makes models for tests of package sim, where there is no command
CLUSTER = "sim/cluster"
INSTANCES = f"{CLUSTER}/instance.go"
CONFIG = "sim/config.go"
COMMAND = "cmd/root.go"
GUIDE = "docs/guide/latency-models.md"
REFERENCE = "docs/reference/configuration.md"
# folders whose comments and pages may say that there are two backends
COMMENTED = ("sim", PACKAGE, CLUSTER, "cmd")
PAGES = ("README.md", "CLAUDE.md", "docs/*.md", "docs/[!p]*/**/*.md")  # but for docs/plans, which are history
_CALL = ("latency", ".", "NewLatencyModel", "(")
_CLUSTER_CALL = ("cluster", ".", "NewClusterSimulator", "(")
# field of the options type -> the names of the field of the host's sim.SimConfig that holds it
SETTINGS = {fact(name): fields for name, fields in CONFIG_FIELDS.items()}
_FORMULAS = {fact(name): text for name, text in FORMULAS.items()}


def changes(root: Path, backend: Backend, emitted: Mapping[str, str]) -> dict[str, str]:
    """Path in the clone at `root` -> new text of each file that registers the backend. Nothing is written.

    `emitted` are the files of package latency, name -> text. Raises InputError at the first place that is not as
    expected, or if the backend is there already.
    """
    host = _Host(root)
    if f"module {MODULE}\n" not in host.text("go.mod"):
        raise InputError(f"cannot edit {root}: its go.mod is not that of module {MODULE}. Give a clone of the host.")
    host.edit(FACTORY, lambda path, text: with_case(path, text, backend))
    check_functions(PACKAGE, host.below(PACKAGE))
    known = name_edits.known_names(NAMES, host.text(NAMES))
    host.edit(NAMES, lambda path, text: name_edits.with_name(path, text, backend))
    host.edit(NAMES_TEST, lambda path, text: name_edits.with_counted_name(path, text, backend, known))
    command = host.below("cmd")
    _check_models(host, command)
    if backend.settings:
        _pass_settings(host, backend)
    if not any(name_edits.has_flag(path, text) for path, text in command.items()):
        raise moved(COMMAND, "definition of the flag --latency-model")
    for path in command:
        host.edit(path, lambda path, text: name_edits.with_help(path, text, backend))
    if backend.facts == "host":
        _wire(host, backend, command)
    kind = f"type {backend.name.exported} struct"
    [file] = [name for name, text in emitted.items() if name.endswith(".go") and kind in text]
    host.edit(GUIDE, lambda path, text: with_section(path, text, backend, file))
    host.edit(REFERENCE, lambda path, text: with_row(path, text, backend))
    for folder in COMMENTED:
        for path in host.below(folder):
            host.edit(path, lambda path, text: prose_edits.with_comments(path, text, backend))
    for path in host.pages():
        host.edit(path, lambda path, text: prose_edits.with_page(text, backend))
    for name, text in emitted.items():
        path = f"{PACKAGE}/{name}"
        check_no_link(root, path)
        if (root / path).exists():
            raise InputError(f"cannot write {path}: the file exists. Choose another --name.")
        host.changed[path] = text
    return host.changed


def check_no_link(root: Path, path: str) -> None:
    """Raise InputError if the path leads through a link below the root: what a link names may be outside."""
    for place in [Path(path), *Path(path).parents]:
        if (root / place).is_symlink():
            raise InputError(f"cannot edit {path}: {place} is a link in the clone. Give a clone with a file there.")


class _Host:
    """The files of a clone, with the changes so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: dict[str, str] = {}

    def text(self, path: str) -> str:
        """The file with its changes. Raises InputError if it cannot be read."""
        if path in self.changed:
            return self.changed[path]
        check_no_link(self.root, path)
        try:
            return (self.root / path).read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            raise moved(path, "readable text there") from None

    def below(self, folder: str) -> dict[str, str]:
        """Path -> text of the Go files in the folder itself, tests apart."""
        there = {f"{folder}/{p.name}" for p in (self.root / folder).glob("*.go")}
        added = {path for path in self.changed if path.rpartition("/")[0] == folder and path.endswith(".go")}
        return {path: self.text(path) for path in sorted(there | added) if not path.endswith("_test.go")}

    def pages(self) -> list[str]:
        """The paths of the clone's pages."""
        found = {page.relative_to(self.root).as_posix() for glob in PAGES for page in self.root.glob(glob)}
        return sorted(
            path for path in found if not any(p.is_symlink() for p in (self.root / path, *(self.root / path).parents))
        )

    def edit(self, path: str, change: Callable[[str, str], str]) -> bool:
        """Apply the change, a function of path and text. Returns True if the file differs."""
        before = self.text(path)
        after = change(path, before)
        if after != before:
            self.changed[path] = after
        return after != before


def _check_models(host: _Host, command: Mapping[str, str]) -> None:
    """Let the command end where a backend refuses a deployment: the package that builds instances panics there."""
    files = host.below(CLUSTER)
    if not any("func CheckLatencyModels(" in text for text in files.values()):
        for name, text in check_files(files).items():
            host.changed[f"{CLUSTER}/{name}"] = text
    checked = [path for path in command if host.edit(path, with_check)]
    if not checked and not any("CheckLatencyModels(" in text for text in command.values()):
        raise moved(COMMAND, f"call of cluster.NewClusterSimulator in a file that imports {LOGGER}")


def check_files(files: Mapping[str, str]) -> dict[str, str]:
    """The file with CheckLatencyModels and its test, name -> text, for the package of these files."""
    read_files = [read(path, text) for path, text in files.items() if " struct " in text]
    structs = ((go, go.struct("DeploymentConfig")) for go in read_files)
    fields = {name for go, struct in structs if struct for names, _ in go.fields(struct) for name in names}
    roles = any("resolveConfigForRole(" in text for text in files.values())
    if "NumInstances" not in fields or not roles:
        raise moved(CLUSTER, "struct DeploymentConfig with NumInstances and the method resolveConfigForRole")
    return {FILE: check_file(fields), FILE.replace(".go", "_test.go"): check_test()}


def with_check(path: str, text: str) -> str:
    """A file of the command that asks CheckLatencyModels before each cluster; unchanged where it makes none."""
    go = read(path, text)
    edits = []
    for i in go.find(_CLUSTER_CALL):
        config = go.source(go.arguments(i + 3)[0])
        start = text.rfind("\n", 0, go.tokens[i].start) + 1
        if f"CheckLatencyModels({config})" in text or f'"{LOGGER}"' not in text:
            continue
        edits.append((start, start, check_call(config, go.indent(i)) + "\n"))
    return edited(text, edits)


def _pass_settings(host: _Host, backend: Backend) -> None:
    config = config_fields(CONFIG, host.below("sim"))
    if "NewLatencyModel" in host.below(PACKAGE).get(SEAM, ""):
        host.edit(SEAM, lambda path, text: with_default_options(path, text, backend))
    builders = [path for path, text in host.below(CLUSTER).items() if builds_instances(path, text)]
    if not builders:
        raise moved(INSTANCES, "call of latency.NewLatencyModel in the package that builds instances")
    for path in builders:
        host.edit(path, lambda path, text: with_options(path, text, backend, config, CONFIG))


def _wire(host: _Host, backend: Backend, command: Mapping[str, str]) -> None:
    resolved = [
        path for path in command if host.edit(path, lambda path, text: name_edits.with_resolution(path, text, backend))
    ]
    if not resolved:
        raise moved(COMMAND, 'block `if backend == "roofline"` that calls resolveModelConfig')
    parsed = [
        path for path in command if host.edit(path, lambda path, text: name_edits.with_parsing(path, text, backend))
    ]
    if not parsed:
        raise moved(COMMAND, 'condition `backend == "roofline" || backend == "trained-physics"`')


def check_functions(package: str, files: Mapping[str, str]) -> None:
    """Raise InputError unless these files of the host's package have the functions that emitted files call."""
    read_files = [read(path, text) for path, text in files.items()]
    for function, signature in HOST_FUNCTIONS.items():
        if not any(go.find(("func", function, "(")) for go in read_files):
            raise InputError(
                f"cannot emit into {package}: it has no function {function}, which the emitted files call. "
                f"Give a version of the host that has it, or write {signature} there first."
            )


def with_case(path: str, text: str, backend: Backend) -> str:
    """sim/latency/latency.go with a case for the backend in NewLatencyModel, and a field for its options."""
    go = read(path, text)
    if backend.quoted in go.words(go.whole):
        raise already(path, backend)
    body = go.body("NewLatencyModel")
    if body is None:
        raise moved(path, "function NewLatencyModel")
    options = go.struct("latencyOptions")
    if options is None:
        raise moved(path, "struct latencyOptions, which holds the options of NewLatencyModel")
    costs = [names[0] for names, kind in go.fields(options) if kind == "sim.AdapterCost" and names]
    if not costs:
        raise moved(path, "field of type sim.AdapterCost in struct latencyOptions")
    coeffs, hardware = (_parameter(go, path, kind) for kind in ("LatencyCoeffs", "ModelHardwareConfig"))
    collected = _collected(go, path, body)
    last = _last_case(go, path, body, hardware)
    tabs, name = go.indent(last[0]), backend.name.exported
    lines = [f"case {backend.quoted}:"]
    given, cost = f"{name}Options{{AdapterCost: {collected}.{costs[0]}}}", f"{collected}.{costs[0]}"
    if backend.option:
        given = "options"
        lines += [f"\toptions := {collected}.{backend.name.private}", f"\toptions.AdapterCost = {cost}"]
    lines.append(f"\treturn New{name}Backend({coeffs}, {hardware}, {given})")
    at = go.line_end(last[1])
    edits = [(at, at, "".join(f"\n{tabs}{line}" for line in lines))]
    if backend.option:
        end = go.line_end(options.last - 1)
        tabs = go.indent(options.last - 1)
        private = backend.name.private
        field = f"{tabs}// {private} is set by With{name}Options.\n{tabs}{private} {name}Options"
        edits += [(end, end, f"\n{field}"), (len(text), len(text), f"\n{backend.option}\n")]
    return edited(text, edits)


def _parameter(go: GoFile, path: str, kind: str) -> str:
    """The name of the factory's parameter of this type of package sim."""
    [opening] = [i + 2 for i in go.find(("func", "NewLatencyModel", "(")) if go.depth[i] == 0]
    for span in go.arguments(opening):
        texts = [go.tokens[i].text for i in range(span.first, span.last + 1)]
        if texts[1:] == ["sim", ".", kind]:
            return texts[0]
    raise moved(path, f"parameter of type sim.{kind} in NewLatencyModel")


def _collected(go: GoFile, path: str, body: Span) -> str:
    for i in go.find(("latencyOptions",), body):
        before = [t.text for t in go.tokens[i - 2 : i]]
        if before[0] == "var":
            return before[1]
        if before[1] == ":=":
            return before[0]
    raise moved(path, "variable of type latencyOptions in NewLatencyModel")


def _last_case(go: GoFile, path: str, body: Span, hardware: str) -> tuple[int, int]:
    """The first case of the switch on the backend, and the last token before `default` or the closing brace."""
    found = go.find(("switch", hardware, ".", "Backend", "{"), body)
    if len(found) != 1:
        raise moved(path, f"single `switch {hardware}.Backend` in NewLatencyModel")
    opening = found[0] + 4
    inside = [i for i in range(opening + 1, go.closing[opening]) if go.depth[i] == go.depth[opening] + 1]
    clauses = [i for i in inside if go.tokens[i].text in ("case", "default")]
    texts = [go.tokens[i].text for i in clauses]
    if "case" not in texts or "default" in texts[:-1]:
        raise moved(path, f"`switch {hardware}.Backend` with cases, and nothing after its default, in NewLatencyModel")
    end = clauses[-1] if texts[-1] == "default" else go.closing[opening]
    return clauses[0], end - 1


def with_options(path: str, text: str, backend: Backend, config: Mapping[str, str], where: str) -> str:
    """A file that builds instances, whose calls of latency.NewLatencyModel pass the engine's settings.

    `config`: fields of sim.SimConfig that an instance's config has -> types. `where` names the file that has them.
    """
    go = read(path, text)
    edits, calls = [], list(_calls(go))
    if len(calls) < len(go.find(_CALL)):
        raise moved(path, "config whose LatencyCoeffs are the first argument of every latency.NewLatencyModel")
    for opening, owner in calls:
        values = []
        for setting in backend.settings:
            names = SETTINGS[setting]
            field = next((name for name in names if name in config), None)
            if field is None:
                raise moved(where, f"field {' or '.join(names)} in sim.SimConfig")
            value = _FORMULAS.get(setting, "{}").format(f"{owner}.{field}")
            values.append(f"{setting}: {value if config[field] == 'float64' else f'float64({value})'}")
        last = go.closing[opening] - 1
        comma = "" if go.tokens[last].text == "," else ","
        tabs = go.indent(last) if go.line(opening) != go.line(last) else go.indent(last) + "\t"
        name = backend.name.exported
        option = f"latency.With{name}Options(latency.{name}Options{{{', '.join(values)}}})"
        at = go.tokens[last].end
        edits.append((at, at, f"{comma}\n{tabs}{option}{'' if comma else ','}"))
    return edited(text, edits)


def with_default_options(path: str, text: str, backend: Backend) -> str:
    """The file that makes models without a command, which gives the backend the host's own defaults."""
    go = read(path, text)
    edits = []
    for i in go.find(("NewLatencyModel", "(")):
        at = go.tokens[go.closing[i + 1]].start
        edits.append((at, at, f", {backend.defaults}"))
    if not edits:
        raise moved(path, "call of NewLatencyModel")
    return edited(text, edits)


def builds_instances(path: str, text: str) -> bool:
    """True if the file calls latency.NewLatencyModel."""
    return "NewLatencyModel" in text and bool(read(path, text).find(_CALL))


def _calls(go: GoFile) -> Iterator[tuple[int, str]]:
    """The opening bracket of each such call, and the config whose LatencyCoeffs are its first argument."""
    for i in go.find(_CALL):
        arguments = go.arguments(i + 3)
        first = go.source(arguments[0]) if arguments else ""
        if first.endswith(".LatencyCoeffs"):
            yield i + 3, first.removesuffix(".LatencyCoeffs")


def config_fields(path: str, files: Mapping[str, str]) -> dict[str, str]:
    """The fields of struct SimConfig, those of embedded structs among them -> their types; from the files of sim/."""
    read_files = [read(name, text) for name, text in files.items() if " struct " in text]
    found: dict[str, str] = {}
    structs = ["SimConfig"]
    for name in structs:  # grows with each embedded struct
        for go in read_files:
            struct = go.struct(name)
            for names, kind in go.fields(struct) if struct else ():
                found |= dict.fromkeys(names, kind)
                if not names and kind not in structs:
                    structs.append(kind)
    if not found:
        raise moved(path, "struct SimConfig")
    return found


def with_section(path: str, text: str, backend: Backend, file: str) -> str:
    """The guide on latency models with a section on the backend at its end. `file`: that of the backend's type."""
    if not re.search(r"^# .*latency", text, re.IGNORECASE | re.MULTILINE):
        raise moved(path, "heading that names latency models")
    if f"## The {backend.name.registered} backend" in text:
        raise already(path, backend)
    facts = [_TEXT[backend.facts], _TEXT["sized" if backend.facts == "host" else "unsized"]]
    if backend.settings:
        flags = TARGETS["blis-4"].flags
        held = {fact(name): flags["max_num_seqs" if name in FORMULAS else name] for name in CONFIG_FIELDS}
        listed = ", ".join(dict.fromkeys(f"`{held[setting]}`" for setting in backend.settings))
        facts.append(f"It reads the engine's settings from {listed}.")
    about = textwrap.fill(
        backend.name.fill(_TEXT["about"], file=file, facts=" ".join(facts)), 118, break_on_hyphens=False
    )
    section = backend.name.fill(_TEXT["section"], about=about, command=backend.command)
    return f"{text.rstrip()}\n\n{section}\n"


def with_row(path: str, text: str, backend: Backend) -> str:
    """The reference of configuration whose table row of --latency-model names the backend."""
    found = re.search(r"^\|\s*`--latency-model`\s*\|.*\|[ \t]*$", text, re.MULTILINE)
    if found is None:
        raise moved(path, "table row of the flag `--latency-model`")
    at = found.start() + found.group().rindex("|")
    before = text[:at].rstrip(" ")
    return f"{before} `{backend.name.registered}`: see [the guide](../guide/latency-models.md). {text[at:]}"
