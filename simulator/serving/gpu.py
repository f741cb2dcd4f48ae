"""GPUs and their figures, from configs/hardware.yaml or from a mapping in an experiments file.

A mapping has our own keys, those of the host's hardware_config.json, or those of a datasheet in JSON. Figures are per
GPU: dense peaks in TFLOP/s, memory in TB/s, one direction of the link in GB/s, capacity in GB (as sold) or usable GiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.common.documents import shipped
from simulator.common.errors import OWN_GPU, InputError, Section, nearest_listed, shown
from simulator.common.json import JsonObject
from simulator.model.config_keys import FREE
from simulator.serving import limits

MFU = ("mfu_prefill", "mfu_decode")
FIGURES = ("bf16_tflops", "fp8_tflops", "fp4_tflops", "memory_tb_per_s", "link_gb_per_s", "memory_gb", "usable_gib")
GPU_KEYS = ("name", "aliases", *FIGURES, "kernels", *MFU)
HOST = {
    "TFlopsPeak": "bf16_tflops",
    "TFlopsFP8": "fp8_tflops",
    "BwPeakTBs": "memory_tb_per_s",
    "MemoryGiB": "memory_gb",
    "mfuPrefill": "mfu_prefill",
    "mfuDecode": "mfu_decode",
}
DATASHEET = (
    *("name", "vendor", "architecture", "compute", "memory", "interconnect", "power"),
    *("mig_partitions", "form_factor", "datasheet_id"),
    *MFU,
)
USABLE_SHARE = 0.989  # GiB that CUDA reports per GB of the product's name: 79.11 for an 80 GB H100


@dataclass(frozen=True, slots=True)
class Mfu:
    """The shares of a GPU's peak FLOP/s that the host's roofline assumes in prefill and decode. Used nowhere else."""

    prefill: float = 0.65
    decode: float = 0.12


DEFAULT_MFU = Mfu()


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU with its datasheet figures, None where not given. `kernels` names its tables of measured kernels, "" for
    none."""

    name: str = "inline"
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    memory_tb_per_s: float | None = None
    link_gb_per_s: float | None = None
    memory_gb: float | None = None
    usable_gib: float | None = None
    kernels: str = ""
    mfu: Mfu = DEFAULT_MFU
    fp4_tflops: float | None = None

    def figure(self, key: str, where: str, remedy: str) -> float:
        """A figure that the deployment at `where` needs. Raises InputError if it was not given."""
        value: float | None = getattr(self, key)
        if value is None:
            raise Section(where, "hardware", {}).error(key, "is missing", remedy)
        return value

    def figures(self) -> JsonObject:
        """The mapping that describes it in an experiments file."""
        given = {key: getattr(self, key) for key in FIGURES if getattr(self, key) is not None}
        entry: JsonObject = {"name": self.name, **{key: int(x) if x.is_integer() else x for key, x in given.items()}}
        if self.kernels:
            entry["kernels"] = self.kernels
        if self.mfu != DEFAULT_MFU:
            entry |= {"mfu_prefill": self.mfu.prefill, "mfu_decode": self.mfu.decode}
        return entry

    def to_entry(self) -> str | JsonObject:
        """The `hardware` of an experiments file: the name of a known GPU, else its figures."""
        known = self.name in hardware_table() and gpu_named(self.name) == self
        return self.name if known else self.figures()


@cache
def hardware_table() -> dict[str, Mapping[str, Any]]:
    """Entries of configs/hardware.yaml under their name and every alias."""
    entries = shipped("hardware.yaml")["hardware"]
    return {name: entry for entry in entries for name in (entry["name"], *entry["aliases"])}


def gpu_names(hardware: str) -> tuple[str, ...]:
    """The other names of a GPU: its aliases, none for an unknown one."""
    return tuple(hardware_table()[hardware]["aliases"]) if hardware in hardware_table() else ()


@cache
def gpu_named(name: str) -> Gpu:
    """The GPU of configs/hardware.yaml with this name or alias."""
    return gpu_of(Section("configs/hardware.yaml", name, hardware_table()[name]))


def known_gpu(name: str, label: str) -> Gpu:
    """A GPU of configs/hardware.yaml; `label` names the argument in an error message.

    Raises InputError for an unknown name.
    """
    if name not in hardware_table():
        hint = nearest_listed(name, sorted(hardware_table()), OWN_GPU)
        raise InputError(f"{label}: is not a known GPU: {hint}")
    return gpu_named(name)


@cache
def measured_gpus() -> tuple[Gpu, ...]:
    """The GPUs of configs/hardware.yaml with measured kernels."""
    names = dict.fromkeys(str(entry["name"]) for entry in hardware_table().values() if entry.get("kernels"))
    return tuple(map(gpu_named, names))


def read_hardware(top: Section) -> Gpu:
    """The key `hardware` of an experiment. Raises InputError for an unknown name, and for a mapping as `gpu_of`."""
    remedy = "name a GPU of configs/hardware.yaml or give a mapping with the same keys"
    if isinstance(top.required("hardware", remedy), Mapping):
        return gpu_of(top.section("hardware", remedy))
    name = top.name("hardware", remedy)
    if name not in hardware_table():
        hint = nearest_listed(name, tuple(hardware_table()), "give a mapping with the keys of configs/hardware.yaml")
        raise top.error("hardware", f"{shown(name)} is not in the hardware table", hint)
    return gpu_named(name)


def gpu_of(given: Section) -> Gpu:
    """The GPU in a mapping. Raises InputError for a key of none of the three forms, and for a figure no GPU has."""
    if "TFlopsPeak" in given.raw:
        given.only((*HOST, *GPU_KEYS), FREE)
        raw = {HOST.get(key, key): value for key, value in given.raw.items()}
    elif "compute" in given.raw:
        given.only(DATASHEET, FREE)
        raw = _datasheet(given)
    else:
        given.only(GPU_KEYS, FREE)
        raw = dict(given.raw)
    if raw.get("usable_gib") is None and isinstance(raw.get("memory_gb"), int | float):
        raw["usable_gib"] = raw["memory_gb"] * USABLE_SHARE
    s = Section(given.where, given.path, raw)
    remedy = "give a share of the peak, as 0.65"
    shares = {key.removeprefix("mfu_"): s.number(key, remedy, above=0, most=1) for key in MFU if s.has(key)}
    figures = {key: _figure(s, key) for key in FIGURES if s.has(key)}
    name, kernels = (s.name("name") if s.has("name") else "inline"), (s.text("kernels") if s.has("kernels") else "")
    return Gpu(name=name, **figures, kernels=kernels, mfu=Mfu(**shares))  # type: ignore[arg-type]


def _figure(s: Section, key: str) -> float:
    least, most = limits.GPU.get(key, (0.0, limits.MOST_GIB))
    return s.number(key, "give the figure of its datasheet", above=0, least=least, most=most)


def _datasheet(given: Section) -> JsonObject:
    """The figures of a datasheet. Tensor-core figures are halved if they assume sparsity, and links because datasheets
    count both directions."""
    compute = given.section("compute", "give the TFLOP/s of the tensor cores")
    memory = given.section("memory", "give capacity_gb and bandwidth_tb_s")
    half = 0.5 if compute.flag("with_sparsity", False) else 1.0
    peak = "bf16_tensor_core" if compute.has("bf16_tensor_core") else "fp16_tensor_core"
    figures: JsonObject = {key: given.raw[key] for key in ("name", *MFU) if given.has(key)}
    figures["bf16_tflops"] = half * compute.number(peak, "give the TFLOP/s", above=0)
    figures["memory_tb_per_s"] = memory.number("bandwidth_tb_s", "give TB/s", above=0)
    if compute.has("fp8_tensor_core"):
        figures["fp8_tflops"] = half * compute.number("fp8_tensor_core", "give the TFLOP/s", above=0)
    if memory.has("capacity_gb"):
        figures["memory_gb"] = memory.number("capacity_gb", "give GB", above=0)
    if given.has("interconnect"):
        link = given.section("interconnect", "give nvlink_bandwidth_gb_s")
        key = "nvlink_bandwidth_gb_s" if link.has("nvlink_bandwidth_gb_s") else "pcie_bandwidth_gb_s"
        figures["link_gb_per_s"] = link.number(key, "give GB/s, both directions together", above=0) / 2
    return figures
