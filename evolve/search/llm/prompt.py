"""What a proposing model is shown: text made from the archive's values. It holds no path, name of a run, or key."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff

import numpy as np

from archive.champion import Rule
from archive.elite import Elite
from archive.population import Population
from archive.proposal import POLISH, Outcome
from evaluator.assess import Scored
from evolve.output.table import counted, number
from evolve.run.config import Config
from evolve.search.llm.calls import Messages
from evolve.search.llm.templates import Templates, fill
from evolve.search.vocabulary import field_set
from evolve.summary.research import Issue
from simulator.common.text import plain
from simulator.language.measure import Caps
from simulator.language.parse import parse
from simulator.language.simplify import brief, lean
from simulator.language.unparse import unparse
from simulator.schema import FIELDS

MOST_COMPLAINTS = 8
LONGEST_COMPLAINT = 300  # characters
LONGEST_REFUSAL = 60  # characters of why a proposal was refused, in the list of what was tried
LONGEST_IDEA = 48  # characters of a title in that list
SAME = 50  # complaints whose first characters agree, up to their numbers, are of one kind
MOST_FRONT = 5  # programs of the front that a question lists
# Fields whose names say it all to a language model.
PLAIN = frozenset((
    "prefill_reqs", "decode_reqs", "batch_size", "prefill_tokens", "tokens", "max_prefill_chunk", "kv_mean",
    "kv_max", "kv_decode_sum", "kv_decode_mean", "kv_decode_max", "kernel_router_us", "kernel_lm_head_us", "layers",
    "dense_layers", "moe_layers", "hidden", "heads", "kv_heads", "kv_heads_per_gpu", "head_dim", "ffn", "moe_ffn",
    "vocab", "experts", "active_experts", "tp", "tp_log2", "is_moe", "is_fp8", "repetition_penalty", "kv_blocks",
    "kv_cpu_offload", "model_params_b", "active_params_b", "max_num_seqs", "max_num_batched_tokens",
    "max_model_len", "block_size", "bytes_per_us", "kv_bytes_per_token", "kv_us_per_token", "weights_us",
    "input_len",
))  # fmt: skip
DEAD = 1e-9  # constants up to this size change nothing, and are not shown
KINDS = {
    "point": "a point change of A: one term added, removed, replaced, or given another scaling",
    "structural": "a structural change of A: its parts combined otherwise (overlap as max, a regime, a shared factor)",
    "crossover": "a crossover: A with the part of another program above that is better where A is worst",
    "residuals": "informed by the errors above: a mechanism that explains the largest errors on runs left out, and "
    "would be there for any model",
    "simplify": "a simpler program that should be about as good: terms merged or left out",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question asks: the program to improve, where it is wrong, other programs, and the kinds of proposals.

    `meanwhile` says what is asked at the same time; `notes` are those of the run so far, `issues` what judges had
    against the latest ideas.
    """

    base: Elite
    others: tuple[Elite, ...]
    kinds: tuple[str, ...]
    diagnosis: str
    meanwhile: str
    notes: str
    issues: Sequence[Issue] = ()


def task(texts: Templates, caps: Caps, allowed: Collection[str] | None, rounds: int) -> str:
    """The part that all prompts of a run share. `allowed` are the fields that step_time may read, None for all."""
    limits = ", ".join(f"at most {most} {name}" for name, most in asdict(caps).items())
    return fill(texts["task"], caps=limits, fields=fields_text(allowed), rounds=str(rounds))


def fields_text(allowed: Collection[str] | None) -> str:
    """The allowed fields with their meanings, a line each, below a heading for every scope and unit."""
    groups: dict[tuple[str, str], list[str]] = {}
    for f in FIELDS.values():
        if f.scope == "r" or allowed is None or f"{f.scope}.{f.name}" in allowed:
            groups.setdefault((f.scope, f.unit), []).append(f.name if f.name in PLAIN else f"{f.name}: {f.meaning}")
    return "\n".join("\n".join([f"{scope}. in {unit}", *lines]) for (scope, unit), lines in groups.items())


def messages(texts: Templates, config: Config, population: Population, asked: Asked) -> Messages:
    """The messages to a proposing model: the task, and the question to improve a program."""
    system = task(texts, config.caps, field_set(config.search.fields), config.llm.rounds)
    return (("system", system), ("user", question(texts, population, asked)))


def question(texts: Templates, population: Population, asked: Asked) -> str:
    """The part that asks for proposals."""
    base, best = asked.base, population.champion()
    text = bare(base.text)
    title = f"Program {base.id}" + (", the champion" if best and best.id == base.id else "")
    shown = [_other(e, text, champion=best is not None and e.id == best.id) for e in asked.others]
    return fill(
        texts["propose"],
        program=text.strip(),
        errors=f"{title}: {figures(base)}.",
        diagnosis=asked.diagnosis.strip(),
        others="\n\n".join(shown) or "There is no other yet.",
        front=front(population.archive.front_by_size()),
        aim=aim(population.rule),
        tried=tried(population),
        meanwhile=f"{asked.meanwhile} " if asked.meanwhile else "",
        notes=asked.notes or "None yet.",
        issues=issues_text(asked.issues),
        programs=str(len(asked.kinds)),
        kinds="\n".join(f"- Proposal {i}: {KINDS[kind]}" for i, kind in enumerate(asked.kinds, 1)),
    )


def issues_text(issues: Sequence[Issue]) -> str:
    """The part that asks to answer the latest reviews, issue by issue; "" if there are none."""
    if not issues:
        return ""
    lines = "\n".join(f"{i}. {issue.line}" for i, issue in enumerate(issues, 1))
    return (
        f"# Issues that judges raised with the latest ideas\n\n{lines}\n\nAnswer every issue by its number in a line "
        "`Issue N: ` below the heading of your first proposal: what you\nchange because of it, or why it does not "
        "hold.\n\n"
    )


def bare(text: str) -> str:
    """A program without docstrings, because their text could instruct the model, and without dead constants."""
    program = parse(text)
    alive = program.with_theta(tuple(0.0 if abs(x) <= DEAD else x for x in program.theta))
    short = brief(lean(alive)) if alive.theta != program.theta else program
    return unparse(replace(short, doc="", functions=tuple(replace(f, doc="") for f in short.functions)))


def figures(scored: Elite | Scored) -> str:
    """A program's errors and size, in one line."""
    score = scored.score if isinstance(scored, Scored) else scored
    parts = [f"{label} {number(value, 2, signed=False)}" for label, value in (
        ("worst 3", score.worst3), ("joint", score.joint), ("transfer", scored.transfer), ("E2E", score.e2e),
        ("TTFT", score.ttft), ("ITL", score.itl))]  # fmt: skip
    sound = "" if scored.sound else ", contradicts the datasheet"
    size = f"{counted(scored.operations, 'operation')}, {counted(scored.constants, 'constant')}"
    return f"{', '.join(parts)} percent; {size}{sound}"


def _other(elite: Elite, base: str, champion: bool) -> str:
    """Another program: what it has in place of lines of `base`, or all of it if that is shorter."""
    text = bare(elite.text)
    lines = list(unified_diff(base.splitlines(), _with_values_of(base, text).splitlines(), n=0, lineterm=""))[2:]
    difference = "\n".join(line for line in lines if not line.startswith("@@"))
    title = f"Program {elite.id}{', the champion' if champion else ''}: {figures(elite)}."
    if not difference:
        return f"{title} It is A with other constants."
    if len(difference) < len(text):
        return f"{title} Its lines (+) in place of A's (-), with A's constants:\n\n```diff\n{difference}\n```"
    return f"{title}\n\n```python\n{text.strip()}\n```"


def _with_values_of(base: str, text: str) -> str:
    """The program `text` with the values that constants of the same name have in `base`."""
    values = {(f.name, c.name): c.value for f in parse(base).functions for c in f.constants}
    program = parse(text)
    theta = (values.get((f.name, c.name), c.value) for f in program.functions for c in f.constants)
    return unparse(program.with_theta(tuple(theta)))


def aim(rule: Rule) -> str:
    """What a search looks for, in a few words; see archive.champion.Rule."""
    least = {"joint": "joint error", "transfer": "mean of joint and transfer error"}[rule.by]
    return f"the simplest program within {100 * rule.within:g} % of the lowest {least}"


def front(elites: Sequence[Elite]) -> str:
    """A line for each of some programs of the front, from the simplest to the largest."""
    whole = [e for e in elites if e.sound and e.transfer is not None] or list(elites)
    step = max((len(whole) - 1) / max(MOST_FRONT - 1, 1), 1.0)
    some = [whole[round(i * step)] for i in range(min(MOST_FRONT, len(whole)))]
    lines = [
        f"{e.id} | {number(e.worst3, 2, signed=False)} {number(e.joint, 2, signed=False)} "
        f"{number(e.transfer, 2, signed=False)} | {e.operations}+{e.constants}"
        for e in some
    ]
    return "\n".join(["program | worst 3, joint, transfer | operations+constants", *lines])


def tried(population: Population) -> str:
    """A line for each of the latest ideas of models: the base, and what became of its errors, or why it was refused."""
    lines = [_tried(outcome, population) for outcome in population.ideas]
    return "\n".join(["idea | base | joint, transfer", *lines]) if lines else "Nothing yet."


def _tried(outcome: Outcome, population: Population) -> str:
    proposal, elite, known = outcome.proposal, outcome.elite, population.archive.by_id
    base = known.get(proposal.parents[0]) if proposal.parents else None
    title = f"{plain(proposal.idea, LONGEST_IDEA) or 'no title'} | {base.id if base else '-'}"
    if outcome.rejection:
        return f"{title} | {plain(f'{outcome.rejection.stage}: {outcome.rejection.why}', LONGEST_REFUSAL)}"
    assert elite is not None
    joint = elite.joint - base.joint if base else None
    known_transfer = base is not None and base.transfer is not None and elite.transfer is not None
    transfer = elite.charged_transfer - base.charged_transfer if base and known_transfer else None
    return f"{title} | {number(joint, 2)} {number(transfer, 2)}"


def verdicts(texts: Templates, lines: Sequence[str], best: str, rounds: int, programs: int) -> str:
    """The message that says what became of the programs of a round. `lines` has a line on each, `best` what is known
    of the best of them; so many `rounds` and at most so many `programs` may follow."""
    known = f"Of the best of these:\n{best}" if best else "None could be scored."
    return fill(texts["round"], verdicts="\n".join(lines), best=known, rounds=str(rounds), programs=str(programs))


def complaints(rejected: Iterable[Outcome]) -> tuple[str, ...]:
    """The last rejections that a proposer can learn from, the latest last; only one of those that differ in numbers."""
    lines: dict[str, str] = {}
    for outcome in rejected:
        rejection = outcome.rejection
        if rejection and rejection.stage != POLISH:
            kind = re.sub(r"[\d.,]+", "0", rejection.why)[:SAME]
            lines.pop(kind, None)  # so that the latest of a kind comes last
            lines[kind] = plain(f"{rejection.stage}: {rejection.why}", LONGEST_COMPLAINT)
    return tuple(lines.values())[-MOST_COMPLAINTS:]


def kinds(count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """The kinds of `count` proposals: all kinds in turn, starting from a random one."""
    names = list(KINDS)
    first = int(rng.integers(len(names)))
    return tuple(names[(first + i) % len(names)] for i in range(count))
