"""A GPU's figures from a mapping: our own keys, the host's hardware_config.json, or a datasheet in JSON.

All three are converted to the keys of configs/hardware.yaml: dense peaks in TFLOP/s, memory in TB/s, one direction of
the link in GB/s, capacity in GB (as sold) or usable GiB, shares of the peak (MFU) for the host's roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.common.errors import Section
from simulator.common.json import JsonObject
from simulator.serving.experiment import Mfu

MFU = ("mfu_prefill", "mfu_decode")
OWN = (
    *("name", "aliases", "bf16_tflops", "fp8_tflops", "memory_tb_per_s", "link_gb_per_s", "memory_gb", "usable_gib"),
    *("kernels", *MFU),
)
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


def gpu_of(given: Section, free: tuple[str, ...]) -> Mapping[str, Any]:
    """The figures under our own keys. Raises InputError for a key of none of the three forms."""
    if given.has("name"):
        given.name("name")
    if "TFlopsPeak" in given.raw:
        given.only((*HOST, *OWN), free)
        figures = {HOST.get(key, key): value for key, value in given.raw.items()}
    elif "compute" in given.raw:
        given.only(DATASHEET, free)
        figures = _datasheet(given)
    else:
        given.only(OWN, free)
        figures = dict(given.raw)
    if figures.get("usable_gib") is None and isinstance(figures.get("memory_gb"), (int, float)):
        figures["usable_gib"] = figures["memory_gb"] * USABLE_SHARE
    return {"name": "inline", **figures}


def mfu_of(gpu: Section) -> Mfu:
    """The MFU of a GPU's figures, by default the host's. Raises InputError outside (0, 1]."""
    given = {
        key.removeprefix("mfu_"): gpu.number(key, "give a share of the peak, as 0.65", above=0, most=1)
        for key in MFU
        if gpu.has(key)
    }
    return Mfu(**given)


def _datasheet(given: Section) -> JsonObject:
    """The figures of a datasheet, with tensor-core figures halved if they assume sparsity, and links halved because
    datasheets count both directions."""
    compute = given.section("compute", "give the TFLOP/s of the tensor cores")
    memory = given.section("memory", "give capacity_gb and bandwidth_tb_s")
    half = 0.5 if compute.flag("with_sparsity", False) else 1.0
    name = "bf16_tensor_core" if compute.has("bf16_tensor_core") else "fp16_tensor_core"
    figures: JsonObject = {
        **{key: given.raw[key] for key in MFU if given.has(key)},
        "name": given.raw["name"] if given.has("name") else "inline",
        "bf16_tflops": half * compute.number(name, "give the TFLOP/s", above=0),
        "memory_tb_per_s": memory.number("bandwidth_tb_s", "give TB/s", above=0),
    }
    if compute.has("fp8_tensor_core"):
        figures["fp8_tflops"] = half * compute.number("fp8_tensor_core", "give the TFLOP/s", above=0)
    if memory.has("capacity_gb"):
        figures["memory_gb"] = memory.number("capacity_gb", "give GB", above=0)
    if given.has("interconnect"):
        link = given.section("interconnect", "give nvlink_bandwidth_gb_s")
        key = "nvlink_bandwidth_gb_s" if link.has("nvlink_bandwidth_gb_s") else "pcie_bandwidth_gb_s"
        figures["link_gb_per_s"] = link.number(key, "give GB/s, both directions together", above=0) / 2
    return figures
