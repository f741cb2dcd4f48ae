"""The host's check of latency models before it builds a cluster, which makes a refused deployment a fatal error."""

from __future__ import annotations

from collections.abc import Collection

from translate_go.templates import sections

_TEXT = sections("host_check")
POOLS = ("PrefillInstances", "DecodeInstances", "SharedInstances")
# fields of the host's DeploymentConfig that say which instances there are, on its main branch
FIELDS = (*POOLS, "NodePools", "HWConfigByGPU")
FILE = "latency_check.go"


def check_file(fields: Collection[str], option: str = "") -> str:
    """The file with CheckLatencyModels of package cluster, whose DeploymentConfig has these fields.

    option: one that the backend needs, of the config `cfg`.
    """
    calibrated = f"\n{_TEXT['calibrated']}" if "HWConfigByGPU" in fields else ""
    text = _TEXT["check"].replace("<pooled>", " + ".join(f"d.{name}" for name in POOLS if name in fields))
    text = text.replace("<placed>", f"{_TEXT['placed' if 'NodePools' in fields else 'unplaced']}\n")
    return text.replace("<calibrated>", calibrated).replace("<option>", f",\n\t\t\t{option}" if option else "") + "\n"


def check_test() -> str:
    """The test of that file."""
    return f"{_TEXT['test']}\n"


def check_call(config: str, indent: str) -> str:
    """The statement of a command that ends it where a latency model of the `config` is refused."""
    return _TEXT["call"].replace("<config>", config).replace("<tabs>", indent)
