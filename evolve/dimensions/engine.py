"""Engine settings: which of them the fitted runs vary, and so which of them the constants have seen."""

from __future__ import annotations

from dataclasses import fields

from evolve.dimensions.dimension import CARE, GOOD, UNTESTED, Dimension, Exhibit, Verdict
from evolve.dimensions.evidence import Evidence
from simulator.experiment.experiment import Engine, Experiment

NAME = "settings"
# The settings that change latencies, and what a replay makes of each.
SETTINGS = {
    "tensor_parallel": "widths, heads and vocabulary are split, two all-reduces a layer",
    "max_num_seqs": "scheduler's limit, and the largest captured CUDA graph",
    "max_num_batched_tokens": "scheduler's budget of a step",
    "max_model_len": "longer requests are refused",
    "block_size": "KV blocks, prefix cache",
    "gpu_memory_utilization": "KV blocks",
    "total_kv_blocks": "KV blocks, if given",
    "chunked_prefill": "scheduler",
    "prefix_caching": "by blocks, with eviction",
    "long_prefill_token_threshold": "scheduler",
    "kv_cpu_offload": "read by programs; what is evicted is prefilled again",
}
assert set(SETTINGS) <= {f.name for f in fields(Engine)}
RULE = (
    "good: every setting that changes latencies has several values among the fitted runs; with care: some have; "
    "untested: "
    "none has"
)


def settings(evidence: Evidence) -> Dimension:
    """The dimension of a subject."""
    subject = evidence.subject
    seen = {name: _values(name, subject.fitted) for name in SETTINGS}
    vary = [name for name, values in seen.items() if len(values) > 1]
    fixed = [name for name in SETTINGS if name not in vary]
    level = GOOD if not fixed else CARE if vary else UNTESTED
    if subject.fitted:
        sentence = f"The fitted runs vary {len(vary)} of {len(SETTINGS)} settings ({', '.join(vary) or 'none'})."
    else:
        sentence = "No record says on which runs the program was fitted, so no setting is known to vary."
    if fixed and subject.fitted:
        sentence += " The others are replayed by rule, and no measurement here says how well."
    exhibit = Exhibit.of(
        "Engine settings of the fitted runs",
        "setting|~values|varied|~in a replay",
        [(name, ", ".join(values) or None, name in vary, SETTINGS[name]) for name, values in seen.items()],
        subject.again(NAME),
        note="default: the model's limit for max_model_len, computed from memory for total_kv_blocks.",
    )
    return Dimension(NAME, "Engine settings", Verdict(level, sentence, RULE), (exhibit,))


def _values(name: str, experiments: tuple[Experiment, ...]) -> list[str]:
    values = {getattr(e.engine, name) for e in experiments}
    return ["default" if v is None else f"{v:g}" if isinstance(v, int | float) and not isinstance(v, bool)
            else str(v).lower() for v in sorted(values, key=lambda v: (v is None, v or 0))]  # fmt: skip
