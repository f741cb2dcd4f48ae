"""What a trace of the host has that no replay has here, and what that does to the figures, a line for each kind.

Client and tenant ids, modalities and targets change no time here, nor in the host's replay of a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulator.common.text import counted, listed, plain
from simulator.serving.trace import Requests, repeated, repeated_share

MOST_NAMED, LONGEST_NAMED = 4, 40  # classes, models or adapters that a line names, and characters of each
URGENT = ("critical", "standard")  # the host's classes that come first, in order; no class is `standard`
TIERED = "tiered"  # source of a hit rate that counts KV blocks in host memory too
SLOWER = 2, 6  # percent by which the host lengthens a step for each adapter in it, of ranks 8 and 32


@dataclass(frozen=True)
class Loss:
    """Something that no replay has here: what, of how many requests, and what it does to the figures.

    What a replay can compare: the requests `of` a kind, bool, `alone`, as if nothing else were served; all requests
    with the context that they may have `shared`; a KV cache with room for `all_blocks`; the `observed` share of KV
    blocks that was cached.
    """

    text: str
    alone: np.ndarray | None = None
    of: str = ""
    shared: Requests | None = None
    all_blocks: bool = False
    observed: float | None = None


def losses_of_header(raw: Mapping[str, object], name: str) -> tuple[Loss, ...]:
    """What a header, of the file `name`, says of the server or the network."""
    losses = []
    if raw.get("kv_offload"):
        text = "kv_offload: the KV offload of the header is not replayed: evicted prompts are computed again, so TTFT"
        losses.append(Loss(f"{name}: {text} is over-estimated where the cache is full", all_blocks=True))
    metrics = raw.get("observed_kv_metrics")
    rate = metrics.get("hit_rate") if isinstance(metrics, dict) else None
    if isinstance(metrics, dict) and isinstance(rate, int | float) and 0 <= rate <= 1:
        where = "in GPU and host memory" if metrics.get("source") == TIERED else "on the GPU"
        text = f"observed_kv_metrics: the server found {100 * rate:.1f} % of the KV blocks that it looked up {where}"
        losses.append(Loss(f"{name}: {text}; if a replay finds fewer, its TTFT is too long", observed=rate))
    nodes = raw.get("max_nodes_spanned")
    if isinstance(nodes, int) and nodes > 1:
        text = f"max_nodes_spanned: an instance had GPUs of {nodes} nodes, and the slower link between them"
        losses.append(Loss(f"{name}: {text} is not modelled: steps are too short"))
    network = raw.get("network")
    rtt = network.get("measured_rtt_ms") if isinstance(network, dict) else None
    if isinstance(rtt, int | float) and rtt > 0:
        text = f"network: the client's TTFT and E2E include a round trip of {rtt:g} ms, and those of a replay none"
        losses.append(Loss(f"{name}: {text}: it is {rtt:g} ms below them"))
    return tuple(losses)


READ = ("kv_offload", "observed_kv_metrics", "max_nodes_spanned", "network")  # keys of a header of which this tells


def losses_of_data(
    columns: Mapping[str, np.ndarray], requests: Requests, accumulates: bool, served: str | None, name: str
) -> tuple[Loss, ...]:
    """What the columns of the file `name` say of its requests, both in order of injection.

    accumulates: turns of sessions share their context already. served: the model of the header.
    """
    losses = []
    if not accumulates and (loss := _sessions(columns, requests, name)):
        losses.append(loss)
    total = f"of {len(requests):,} requests of {name}"
    if len(counts := _counts(priority := columns["vllm_priority"])) > 1:
        urgent = priority == priority.min()
        text = f"vllm_priority differs ({_named(counts)} {total}): priorities are not replayed, all wait in one queue"
        what = f"the {int(urgent.sum()):,} requests of priority {priority.min()}"
        losses.append(Loss(f"{text}: the TTFT of urgent requests is over-estimated under load", urgent, what))
    classes = np.where(columns["slo_class"] == "", URGENT[1], columns["slo_class"])
    if len(counts := _counts(classes)) > 1:
        first = next((each for each in URGENT if (classes == each).any()), None)
        text = f"slo_class differs ({_named(counts)} {total}): admission, order and routing by class are not replayed"
        urgent = classes == first
        alone = urgent if first and not urgent.all() else None
        what = f"the {int(urgent.sum()):,} requests of class {first}"
        losses.append(Loss(f"{text}: the TTFT of urgent classes is over-estimated under load", alone, what))
    own = np.where(columns["model"] == "", served or "", columns["model"])
    if len(counts := _counts(own)) > 1:
        text = f"model differs ({_named(counts)} {total}): instances of several models are replayed as an engine of one"
        most = max(counts, key=lambda each: counts[each])
        what = f"the {counts[most]:,} requests of {plain(most, LONGEST_NAMED)}"
        losses.append(Loss(f"{text} model, which has the load of all", own == most, what))
    counts = _counts(columns["adapter"][columns["adapter"] != ""])
    if counts:
        text = f"adapter: LoRA adapters are not replayed ({_named(counts)} {total}), nor their loading and their memory"
        low, high = SLOWER
        longer = f"the host lengthens a step by {low} to {high} % for each adapter in it, here by up to"
        losses.append(Loss(f"{text}: {longer} {high * len(counts)} %"))
    return tuple(losses)


def _sessions(columns: Mapping[str, np.ndarray], requests: Requests, name: str) -> Loss | None:
    """The context that turns of sessions may share, if their lengths are those of whole prompts."""
    session = columns["session_id"]
    of = np.unique(session, return_inverse=True)[1]
    order = np.lexsort((columns["round_index"], of))
    order = order[session[order] != ""]
    later = of[order[1:]] == of[order[:-1]]
    if not later.any():
        return None
    goes_on = later & (np.diff(requests.input_len[order]) >= 0)  # else the context was cut
    for prefix in (requests.group, requests.shared_len):
        goes_on &= np.diff(prefix[order]) == 0
    text = np.full(len(requests), -1, np.int64)
    text[order] = np.cumsum(np.concatenate([[True], ~goes_on]))
    shared = replace(requests, prompt=repeated(text), turns=True)
    if not (share := repeated_share(shared) - repeated_share(requests)):
        return None
    turns = f"{int(later.sum()):,} of {len(requests):,} requests of {name} are later turns"
    of_sessions = counted(len(np.unique(of[order[1:]][later])), "session")
    lost = f"up to {100 * share:.1f} % of all prompt tokens, which the server may have cached"
    return Loss(
        f"session_id: {turns} of {of_sessions}, replayed without the context that they share, as by the host: {lost}; "
        "then TTFT is over-estimated, and a fit finds too short a prefill",
        shared=shared,
    )


def _counts(values: np.ndarray) -> dict[str, int]:
    """How often each value occurs."""
    words, counts = np.unique(values, return_counts=True)
    return dict(zip(map(str, words.tolist()), counts.tolist(), strict=True))


def _named(counts: Mapping[str, int]) -> str:
    return listed([f"{plain(word, LONGEST_NAMED) or 'none'} {count:,}" for word, count in counts.items()], MOST_NAMED)
