"""The file that computes a deployment, its facts and curves, from what the host knows of model and GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from translate_go.generic.curves import curve_method
from translate_go.generic.facts import ALLREDUCE, FACTS, HostUse, locals_of
from translate_go.generic.known import Host
from translate_go.generic.model import model_parts
from translate_go.naming import BackendName
from translate_go.spelling import MARK, columns, curve_name, fact
from translate_go.target import MODULE

_LOG2 = """\
// <name>Log2 is the logarithm of a number of GPUs. Where it is no whole number, maths libraries differ in its last bit.
func <name>Log2(gpus int64) float64 {
	known := map[int64]float64{<known>}
	if log, ok := known[gpus]; ok {
		return log
	}
	return math.Log2(float64(gpus))
}
""".replace("<known>", ", ".join(f"{n}: {math.log2(n)!r}" for n in range(3, 16) if n.bit_count() > 1))
_FLAG = """\
func <name>Flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
"""


def facts_file(name: BackendName, facts: Sequence[str], use: HostUse, host: Host) -> str:
    """The text of the file: the model read from the host's configuration, and the deployment made of it."""
    parts = [*model_parts(use, host), _deployment(facts, use)]
    body = "\n".join(parts)
    body += f"\n{_LOG2}" if "<name>Log2(" in body else ""
    body += f"\n{_FLAG}" if "<name>Flag(" in body else ""
    standard = [f'\t"{package}"' for package in ("fmt", "math", "reflect", "strings") if f"{package}." in body]
    imports = "\n".join([*standard, "", f'\t"{MODULE}/sim"'])
    return name.fill(f"// {MARK}\n\npackage latency\n\nimport (\n{imports}\n)\n\n{body}")


def _deployment(facts: Sequence[str], use: HostUse) -> str:
    """The method that fills the deployment."""
    rows = [(f"{fact(name)}:", f"{FACTS[name]},") for name in facts]
    rows += [(f"{curve_name(name)}:", f"m.{curve_method(name)}(),") for name in use.curves]
    lines = [
        "// deployment is the facts of the model on its GPUs.",
        "func (m *<name>Model) deployment() <Name>Deployment {",
        *(f"\t{local} := {text}" for local, text in locals_of(facts).items()),
        *(ALLREDUCE.rstrip().split("\n") if "allreduce_us_per_token" in facts else []),
        "\treturn <Name>Deployment{", *columns(rows, "\t\t"), "\t}", "}", "",
    ]  # fmt: skip
    return "\n".join(lines)
