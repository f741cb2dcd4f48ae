"""The edits that make the host build a backend: the factory's case, its option, the instances that pass it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.common.errors import InputError
from translate_go.clone.moved import Backend, already, edited, moved, read
from translate_go.clone.scan import GoFile, Span
from translate_go.spelling import fact
from translate_go.target import CONFIG_FIELDS, HOST_FUNCTIONS

_CALL = ("latency", ".", "NewLatencyModel", "(")
# field of the options type -> the names of the field of the host's sim.SimConfig that holds it
SETTINGS = {fact(name): fields for name, fields in CONFIG_FIELDS.items()}


def check_functions(package: str, files: Mapping[str, str]) -> None:
    """Raises InputError, naming one, unless these files of the host's package have the functions that emitted files
    call."""
    read_files = [read(path, text) for path, text in files.items()]
    for function, signature in HOST_FUNCTIONS.items():
        if not any(go.find(("func", function, "(")) for go in read_files):
            raise InputError(
                f"{package}: has no function {function}, without which the emitted files do not compile: "
                f"give a version of the host that has it, or write {signature} there first"
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
    tabs, name = go.indent(last[0]), backend.exported
    lines = [f"case {backend.quoted}:"]
    if backend.settings:
        lines += [
            f"\toptions := {collected}.{backend.private}",
            f"\toptions.AdapterCost = {collected}.{costs[0]}",
            f"\treturn New{name}Backend({coeffs}, {hardware}, options)",
        ]
    else:
        given = f"{name}Options{{AdapterCost: {collected}.{costs[0]}}}"
        lines.append(f"\treturn New{name}Backend({coeffs}, {hardware}, {given})")
    at = go.line_end(last[1])
    edits = [(at, at, "".join(f"\n{tabs}{line}" for line in lines))]
    if backend.settings:
        end = go.line_end(options.last - 1)
        tabs = go.indent(options.last - 1)
        what = f"{tabs}// {backend.private} is set by With{name}Options.\n{tabs}{backend.private} {name}Options"
        edits += [(end, end, f"\n{what}"), (len(text), len(text), f"\n{backend.option}\n")]
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
    """The variable of the factory that collects the options."""
    for i in go.find(("latencyOptions",), body):
        before = [t.text for t in go.tokens[i - 2 : i]]
        if before[0] == "var":
            return before[1]
        if before[1] == ":=":
            return before[0]
    raise moved(path, "variable of type latencyOptions in NewLatencyModel")


def _last_case(go: GoFile, path: str, body: Span, hardware: str) -> tuple[int, int]:
    """Of the switch on the backend: its first case, and the last token before `default` or the closing brace."""
    found = go.find(("switch", hardware, ".", "Backend", "{"), body)
    if len(found) != 1:
        raise moved(path, f"single `switch {hardware}.Backend` in NewLatencyModel")
    opening = found[0] + 4
    clauses = [
        i
        for i in range(opening + 1, go.closing[opening])
        if go.depth[i] == go.depth[opening] + 1 and go.tokens[i].text in ("case", "default")
    ]
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
            value = f"{owner}.{field}"
            values.append(f"{setting}: {value if config[field] == 'float64' else f'float64({value})'}")
        last = go.closing[opening] - 1
        comma = "" if go.tokens[last].text == "," else ","
        tabs = go.indent(last) if go.line(opening) != go.line(last) else go.indent(last) + "\t"
        name = backend.exported
        option = f"latency.With{name}Options(latency.{name}Options{{{', '.join(values)}}})"
        at = go.tokens[last].end
        edits.append((at, at, f"{comma}\n{tabs}{option}{'' if comma else ','}"))
    return edited(text, edits)


def builds_instances(path: str, text: str) -> bool:
    """Whether the file calls latency.NewLatencyModel."""
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
