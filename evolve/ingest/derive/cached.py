"""The tokens of each admission that the prefix cache held, and the evidence for them.

Journeys count cached tokens as covered, so the computed ones must come from elsewhere. The evidence, in the order in
which it is trusted:

- `snapshot`: the engine's own record of the request.
- `summary`: the step's prefill tokens, if this is the only admission in it that is unknown.
- `kv_events`: the stored blocks of the prompt begin where the cached ones end; an admission that ran to its end and
  stored none had all its full blocks cached.
- `prompt`: the same prompt text had been computed before.
- `short`: too short for a full block, or the engine does not cache.
- `none`: no evidence; taken as not cached, as the published reconstruction does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.blocks import BlockChains
from evolve.ingest.derive.journeys import Admission
from evolve.ingest.read.traces import Traces

HOW = ("snapshot", "summary", "kv_events", "prompt", "short", "none")
EXACT = ("snapshot", "summary", "short")
"""The kinds of evidence that the engine recorded or that leave no doubt."""

PUBLISHED_LATE_S = 0.002  # KV events are published while outputs are handled, so a moment after FIRST_TOKEN
TOTALS = ("summary_prefill_reqs", "summary_prefill_tokens", "summary_decode_reqs", "summary_decode_tokens")


@dataclass(frozen=True)
class Evidence:
    """The evidence of cached tokens.

    `same_prompt[request]` is the number of the prompt's text, -1 if unknown; empty without client rows.
    `epoch_offset_s` is wall clock minus server clock. `block` is the tokens of a KV block, `caching` is true if the
    prefix cache is on, `asynchronous` if scheduling is, None if unknown.
    """

    traces: Traces
    chains: BlockChains | None
    epoch_offset_s: float
    same_prompt: Sequence[int]
    block: int
    caching: bool
    asynchronous: bool | None


class CachedTokens:
    """Cached tokens of each admission, 0 without evidence, and the kind of evidence (one of HOW).

    `first_decodes` are the steps of the requests' first decodes.
    """

    def __init__(self, admissions: Sequence[Admission], evidence: Evidence, first_decodes: np.ndarray) -> None:
        self.tokens = [NONE] * len(admissions)
        self.how = ["none"] * len(admissions)
        self._admissions, self._evidence = admissions, evidence
        for i, a in enumerate(admissions):
            if not evidence.caching or a.target <= evidence.block:
                self._settle(i, 0, "short")
        self._from_snapshots(evidence.traces.snapshots)
        self._from_summaries(first_decodes)
        if evidence.chains is not None and len(evidence.chains):
            self._from_blocks(evidence.chains)
        elif len(evidence.same_prompt):
            self._from_prompts()
        self._from_summaries(first_decodes)  # once more: blocks and prompts leave steps with one unknown
        self.tokens = [max(tokens, 0) for tokens in self.tokens]

    def _settle(self, i: int, tokens: int, how: str) -> None:
        self.tokens[i], self.how[i] = tokens, how

    def _full_blocks(self, a: Admission) -> int:
        """The tokens of a cached prompt: its last token is always computed, and a partial block with it."""
        return (a.target - 1) // self._evidence.block * self._evidence.block

    def _from_snapshots(self, snapshots: Columns) -> None:
        computed, effective = {}, {}
        starts = {(a.request, a.start) for a in self._admissions}
        columns = (snapshots[name].tolist() for name in ("request", "step_id", "prompt", "computed", "effective"))
        for request, step, prompt, done, length in zip(*columns, strict=True):
            if done != NONE and (request, step) in starts:
                computed[request, step] = done
            if length != NONE and prompt != NONE:
                effective[request] = prompt - length
        seen = set()
        for i, a in enumerate(self._admissions):
            tokens = computed.get((a.request, a.start))
            if tokens is None and not a.again and a.request not in seen:  # effective: length at the first admission
                tokens = effective.get(a.request)
            seen.add(a.request)
            if tokens is not None and 0 <= tokens < a.target:
                self._settle(i, tokens, "snapshot")

    def _from_summaries(self, first_decodes: np.ndarray) -> None:
        """A step's totals settle an admission of one step that is the only unknown in it."""
        columns = (self._evidence.traces.steps[name].tolist() for name in ("step_id", *TOTALS))
        totals = {row[0]: row[1:] for row in zip(*columns, strict=True) if NONE not in row}
        in_step: dict[int, list[int]] = {}
        for i, a in enumerate(self._admissions):
            for step in range(a.start, a.end + 1):
                if step in totals:
                    in_step.setdefault(step, []).append(i)
        # With two batches in flight the first decode is scheduled before the first token is processed, so the summary
        # counts it as prefill.
        early: dict[int, int] = {}
        if self._evidence.asynchronous:
            steps, counts = np.unique(first_decodes, return_counts=True)
            early = dict(zip(steps.tolist(), counts.tolist(), strict=True))
        for step, members in in_step.items():
            prefill_reqs, prefill_tokens, decode_reqs, decode_tokens = totals[step]
            prefill = [i for i in members if not self._admissions[i].again]
            if len(prefill) + early.get(step, 0) == prefill_reqs:  # every prefill of the step is a known journey
                self._settle_only_unknown(prefill, prefill_tokens - early.get(step, 0))
            again = [i for i in members if self._admissions[i].again]
            self._settle_only_unknown(again, decode_tokens - decode_reqs + len(again))

    def _settle_only_unknown(self, members: list[int], tokens: int) -> None:
        """Settle the only unknown one of `members`, which computed `tokens` tokens together in one step."""
        all_of = self._admissions
        unknown = [i for i in members if self.tokens[i] == NONE]
        if len(unknown) != 1 or not all(all_of[i].single and all_of[i].whole for i in members):
            return
        (i,) = unknown
        new = tokens - sum(all_of[j].target - self.tokens[j] for j in members if j != i)
        if 1 <= new <= all_of[i].target:
            self._settle(i, all_of[i].target - new, "summary")

    def _from_prompts(self) -> None:
        """A prompt computed before is cached except for its last, partial block."""
        computed_at: dict[int, int] = {}  # prompt -> the step after which all of it was in the cache
        for a in sorted(self._admissions, key=lambda a: a.end):
            if a.whole and self._prompt(a) >= 0:
                computed_at.setdefault(self._prompt(a), a.end)
        for i, a in enumerate(self._admissions):
            if self.tokens[i] == NONE and not a.again and computed_at.get(self._prompt(a), a.start) < a.start:
                self._settle(i, self._full_blocks(a), "prompt")

    def _prompt(self, a: Admission) -> int:
        return self._evidence.same_prompt[a.request] if len(self._evidence.same_prompt) else NONE

    def _from_blocks(self, chains: BlockChains) -> None:
        """Settle the admissions whose stored blocks show the cached part.

        A run belongs to an admission if it was stored while the admission was computed and ends where its full blocks
        end, and if one of these holds: its hashes are those of the prompt, the offload tier names the request, or no
        other admission can own it. A run belongs to one admission only. If an admission did not get to its end, any run
        of its prompt shows where it began; if it did and stored nothing, all its full blocks were cached.
        """
        prefill_ns = [a.until_ns - a.at_ns for a in self._admissions if a.single and a.whole and not a.again]
        usual_ns = float(np.median(prefill_ns)) if prefill_ns else 0.0
        stored = [self._stored(a, chains, usual_ns) for a in self._admissions]
        paths = self._paths(chains, stored)
        next_ns = self._next_admission_ns()
        block = self._evidence.block
        taken: set[int] = set()
        for runs, tokens in zip(stored, self.tokens, strict=True):
            taken.update([n for n in runs if tokens != NONE and chains.begin[n] * block == tokens][:1])
        unknown = [i for i, tokens in enumerate(self.tokens) if tokens == NONE]
        # Prefills first: their runs are easier to recognise, which leaves fewer candidates for recomputations.
        for i in sorted(unknown, key=lambda i: self._admissions[i].again):
            a = self._admissions[i]
            since, until = self._wall_s(a.at_ns), self._wall_s(a.until_ns) + PUBLISHED_LATE_S
            if since > chains.last_s or until < chains.first_s:
                continue
            path = () if a.again else paths.get(self._prompt(a), ())
            if a.whole:
                runs = [n for n in stored[i] if n not in taken and (not path or chains.last(n) == path[-1])]
                run = self._own_run(runs, a, chains, bool(path))
            else:  # blocks of an abort are published with the next output, unless the request is admitted again before
                until = self._wall_s(min(a.until_ns + usual_ns, next_ns.get(i, inf)))
                depths = {n: chains.end[n] for n in chains.between(since, until)}
                own = [n for n, end in depths.items() if end <= len(path) and chains.last(n) == path[end - 1]]
                run = max(own, key=depths.__getitem__, default=None)
            if run is not None:
                self._settle(i, chains.root(run, since, a.end - a.start) * block, "kv_events")
                taken.add(run)
            elif a.whole:
                self._settle(i, self._full_blocks(a), "kv_events")

    def _wall_s(self, server_ns: float) -> float:
        return server_ns / 1e9 + self._evidence.epoch_offset_s

    def _stored(self, a: Admission, chains: BlockChains, usual_ns: float) -> Sequence[int]:
        """The runs that end with the admission's last full block and were stored while it was computed, in order."""
        # A recomputation has no FIRST_TOKEN; it takes about as long as a prefill.
        until_ns = min(a.until_ns, a.at_ns + usual_ns * (a.end - a.start + 1)) if a.again else a.until_ns
        until = self._wall_s(until_ns) + PUBLISHED_LATE_S
        return chains.ending(a.target // self._evidence.block, self._wall_s(a.at_ns), until)

    def _paths(self, chains: BlockChains, stored: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """The hashes of the full blocks of every prompt: those of the runs stored during most of its admissions.

        Only runs of several blocks count, because those of an answer come one by one. A prompt without such runs, or
        with a tie, is left out.
        """
        votes: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)  # prompt -> last hash -> runs
        for a, runs, tokens in zip(self._admissions, stored, self.tokens, strict=True):
            prompt = self._prompt(a)
            for n in runs if a.whole and not a.again and prompt >= 0 else ():
                begin = chains.root(n, self._wall_s(a.at_ns), a.end - a.start)
                if chains.end[n] - begin > 1 and tokens in (NONE, begin * self._evidence.block):
                    votes[prompt].setdefault(chains.last(n), []).append(n)
        paths: dict[int, list[int]] = {}
        for prompt, by_hash in votes.items():
            first, *others = sorted(by_hash.values(), key=len, reverse=True)
            if not others or len(first) > len(others[0]):
                paths[prompt] = chains.path(first[0])
        return paths

    def _next_admission_ns(self) -> dict[int, int]:
        """The time of a request's next admission in ns, by the number of the admission before it."""
        last: dict[int, int] = {}
        times = {}
        for i, a in enumerate(self._admissions):
            if a.request in last:
                times[last[a.request]] = a.at_ns
            last[a.request] = i
        return times

    def _own_run(self, runs: Sequence[int], a: Admission, chains: BlockChains, sure: bool) -> int | None:
        """The admission's own run: the first one for which the offload tier names the request, else the first one of
        several blocks.

        A single block is more often the next one of another request's answer, except in a recomputation or if the
        hashes match (`sure`). A prefill of several steps owns the end of the longest chain stored meanwhile.
        """
        if runs and not a.single:
            return min(runs, key=lambda n: chains.root(n, self._wall_s(a.at_ns), a.end - a.start))
        core_id = self._evidence.traces.core_ids[a.request]
        named = {n: chains.commits[core_id, chains.batch[n]] for n in runs}
        alike = [n for n in runs if named[n] == chains.length(n)]
        own = alike or [n for n in runs if named[n]] or [n for n in runs if chains.length(n) > 1 or a.again or sure]
        return own[0] if own else None


def recorded_chunks(admissions: Sequence[Admission], snapshots: Columns) -> dict[tuple[int, int], tuple[int, int]]:
    """(tokens in the KV cache before the step, tokens scheduled) by request and step, for prefills of several steps."""
    wanted = {(a.request, step) for a in admissions if not a.single for step in range(a.start, a.end + 1)}
    columns = (snapshots[name].tolist() for name in ("request", "step_id", "computed", "scheduled"))
    return {
        (request, step): (computed, scheduled)
        for request, step, computed, scheduled in zip(*columns, strict=True)
        if (request, step) in wanted and NONE not in (computed, scheduled)
    }
