"""The beliefs of earlier rounds: what was believed, why, the experiment on the corrected data, and the rule.

The rules were written before the figures; page.py says what was changed since. Beliefs and their figures: the original
exercise, rounds one to five, github.com/inference-sim/inference-sim, hypotheses/h-stepml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from research.rejudged import cycles, forms, loads
from research.rejudged.finding import Finding
from research.rejudged.loads import of_bench
from research.rejudged.verdict import Better, Inside, Limit, Ratio, Rule, Same, Verdict
from research.rejudged.world import World
from simulator.common.json import JsonObject

TEST_CYCLES = "trained for each model on the first 60 % of the cycles of each run, compared on the last 20 %"


@dataclass(frozen=True)
class Claim:
    """A belief. source: which round, and on what it rested. experiment: what is fitted on what, and compared with what.
    estimate: what the rule looks at. methods: those of the bench that it compares, with which it can be repeated."""

    name: str
    title: str
    belief: str
    source: str
    experiment: str
    estimate: str
    rule: Rule
    judge: Callable[[World], Finding]
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """A belief with what its experiment found."""

    claim: Claim
    finding: Finding

    @property
    def verdict(self) -> Verdict:
        return self.claim.rule.verdict(self.finding.estimate)

    def to_json(self) -> JsonObject:
        c = self.claim
        texts = {name: getattr(c, name) for name in ("name", "title", "belief", "source", "experiment")}
        return {**texts, "of": c.estimate, "rule": c.rule.text, "verdict": self.verdict, **asdict(self.finding)}


def judged(world: World, claim: Claim) -> Judgement:
    """The verdict on a belief."""
    return Judgement(claim, claim.judge(world))


def _pair(
    name: str, title: str, belief: str, source: str, methods: tuple[str, str], estimate: str, more: str = ""
) -> Claim:
    """A belief that the second of two methods of the bench is better than the first."""
    worse, better = methods
    experiment = f"{worse} against {better}{more}, without each workload, by the authors' own protocol."
    judge = partial(of_bench, worse=worse, better=better)
    return Claim(name, title, belief, source, experiment, estimate, Better(), judge, methods)


LOADS: tuple[Claim, ...] = (
    Claim(
        "counts-for-all",
        "One set of constants, in raw counts",
        "One set of constants for all models fails in a form that counts tokens and requests.",
        "First round: step times span three orders of magnitude.",
        "The host's linear form, with one set of constants and with one for each model, fitted on load stages "
        "without each workload.",
        "E2E error with one set less that with a set for each model",
        Better(),
        loads.counts_for_all,
    ),
    Claim(
        "sizes-for-all",
        "One set of constants, in a form that knows the model's size",
        "Constants of each model are mandatory, whatever the form.",
        "First and second round, from the same span of step times and from errors above 100 % on models left out.",
        "components-9, which reads FLOPs and bytes of the model, with one set of constants and with one for each "
        "model: the pair that the bench had already. Fitted on load stages without each workload.",
        "E2E error with one set less that with a set for each model",
        Better(),
        loads.sizes_for_all,
        ("components-9", "components-9-per-model", "jams"),
    ),
    Claim(
        "each-run-alone",
        "A fit for each run",
        "Only a fit of each run alone is accurate enough.",
        "First round: 34 % for trees of each run, 302 % for one model of all.",
        "The host's linear form fitted to each run alone against jams with one set of constants for all. Neither "
        "sees the last load stage of the 11 runs that have several; both predict it.",
        "E2E error of that stage with one set less that of fits of each run",
        Better(),
        loads.each_run_alone,
    ),
    Claim(
        "decomposition",
        "Analytic components",
        "A step cannot be composed of analytic FLOPs: the components do worse than counts.",
        "First round: 79 % against 70 %, with an attention of decodes of 0, because contexts were not recorded.",
        "components-9, with the contexts that the replay knows, against the host's linear form in counts; one set of "
        "constants each, fitted on load stages without each workload.",
        "E2E error of components less that of counts",
        Better(),
        loads.decomposition,
        ("components-9",),
    ),
    _pair(
        "two-regimes",
        "Two regimes",
        "Two regimes are too coarse; three, cut at 256 prompt tokens, are better.",
        "Second round: 87 % against 64 % on steps.",
        ("regimes-2-us", "regimes-3-us"),
        "E2E error of two regimes less that of three",
    ),
    _pair(
        "additive-overhead",
        "An additive overhead, by load",
        "An overhead must be a floor: added to the work, it has no stable point between too little load and overload.",
        "Second round; the third and fourth kept the floor, and the fourth's closed form added an intercept after all.",
        ("overhead-additive", "overhead-floor"),
        "E2E error of the sum less that of the floor",
    ),
    Claim(
        "step-floors",
        "Floors of 3.9 to 9.1 ms",
        "The overhead of a step is 3.9 ms for Llama-2-7B, 6.7 for CodeLlama-34B, 8.0 for Llama-2-70B, and 9.1 for "
        "Mixtral.",
        "Second round: mean ITL of the load generator, which is half the true one, less mean duration of schedule().",
        "The step at no load by the line of the true ITL over concurrent requests, through the load stages of each "
        "model, over the floor of that model; mean over the four models, load stages resampled.",
        "step at no load over the floor",
        Ratio(1.0),
        loads.step_floors,
        ("direct",),
    ),
    _pair(
        "log-loss",
        "A loss of logarithms, by load",
        "Logarithms as the target make predictions of loads worse.",
        "Second round.",
        ("regimes-2-log", "regimes-2-standardised"),
        "E2E error with logarithms less that with relative errors",
        ", the same two lines and the same ridge",
    ),
    _pair(
        "feature-scaling",
        "Standardised features, by load",
        "Standardising the features repairs the ridge.",
        "Second round, as the remedy for features of the KV cache; the third found no gain on steps.",
        ("regimes-2-raw", "regimes-2-standardised"),
        "E2E error of raw features less that of standardised ones",
    ),
    _pair(
        "features-in-us",
        "Features in microseconds, by load",
        "Features as times over the datasheet's peaks do better than raw counts.",
        "A proposal of the exercise.",
        ("regimes-2-raw", "regimes-2-us"),
        "E2E error of counts less that of microseconds",
    ),
    _pair(
        "replay-optimisation",
        "Joint optimisation on replays",
        "A joint optimisation of all constants on replays cannot make up for a step time that is wrong in form.",
        "Second round, blocked before it was run; the third and fourth optimised one model at a time.",
        ("bayesian", "overhead-additive"),
        "E2E error after optimisation less that after training on steps",
        " (80 replays against step times; the form is the same)",
    ),
    Claim(
        "delays-e2e",
        "Secondary methods and E2E",
        "queueing_time, output_token_time and completion_time change nothing in E2E.",
        "Second round: constants of 0.2 to 0.4 ms, 0.0 points.",
        "The sum of measured kernels, nothing in it fitted, with no delays and with all three fitted on load stages "
        "without each model.",
        "E2E error without them less that with them",
        Same(1.0),
        partial(loads.delays, figure="e2e"),
    ),
    Claim(
        "delays-ttft",
        "Secondary methods and TTFT",
        "The same methods change nothing in TTFT.",
        "Second round; the fourth set the queueing time to the whole mean TTFT.",
        "The same programs.",
        "TTFT error without them less that with them",
        Same(1.0),
        partial(loads.delays, figure="ttft"),
    ),
    Claim(
        "scheduling-preemption",
        "Scheduling and preemption times",
        "Neither scheduling_time nor preemption_time changes anything that was measured.",
        "Second round: 0.0 points for 0.2 to 0.4 ms.",
        "The sum of measured kernels with both at 0.4 ms and with both at 0, replayed on all runs.",
        "change of the E2E error",
        Same(0.01),
        loads.silent_delays,
    ),
    Claim(
        "ttft",
        "TTFT errors of 31,906 %",
        "A replay that knows only a run's specification is wrong in TTFT by orders of magnitude, so no step time can "
        "save it.",
        "Second round: 31,906 % in the mean; the fourth 30,412 %. The third replayed recorded requests instead: 79 %.",
        "Replays from specifications with prefix cache, true output lengths and arrivals as the load generator draws "
        "them; the sum of measured kernels, and a queueing time fitted on load stages without each model. Errors are "
        "not capped.",
        "mean TTFT error",
        Limit(100.0),
        loads.ttft,
    ),
    Claim(
        "odd-model",
        "The anomaly of CodeLlama-34B, by load",
        "CodeLlama-34B is unlike other models: it is the worst in every figure.",
        "Second round: 2,901 % E2E in its general run; the third saw no anomaly with recorded requests.",
        "The sum of measured kernels, nothing fitted, queueing time 5 ms: its three clean runs against the others.",
        "E2E error of its runs less that of the others",
        Better(),
        loads.odd_model,
    ),
    Claim(
        "small-model",
        "The outlier Llama-2-7B",
        "Llama-2-7B stays an outlier in E2E, for reasons of structure.",
        "Fourth and fifth round: 22.9 % in both, the only run above 10 % in the fourth.",
        "The fourth round's closed form for each model, in sample as it was then, with output lengths and ITL as "
        "they truly were.",
        "E2E error of the runs of Llama-2-7B",
        Limit(10.0),
        loads.small_model,
        ("direct", "direct-published"),
    ),
    Claim(
        "both-at-once",
        "E2E or ITL, not both",
        "No set of constants is good in E2E and in ITL: below 10 % E2E, ITL is more than 20 % off.",
        "Third to fifth round: ITL 87 to 108 % where E2E was good, called a matter of architecture.",
        "The sum of measured kernels, a queueing time fitted on load stages without each model; its E2E error is a "
        "figure.",
        "mean ITL error",
        Limit(20.0),
        loads.both_at_once,
    ),
    Claim(
        "steps-and-loads",
        "Accuracy on steps and on loads",
        "The accuracy on single steps says nothing of the accuracy in E2E.",
        "Second and third round: 27 points on steps changed E2E by 0.",
        "Over the trainings of the bench on all runs: the mean absolute error on the last 20 % of the cycles against "
        "the E2E error of the runs that these are of.",
        "rank correlation of the two errors",
        Same(0.3, ""),
        loads.steps_and_loads,
    ),
)
CYCLES: tuple[Claim, ...] = (
    Claim(
        "kv-raw",
        "KV features, raw",
        "Features of the KV cache make a linear model worse: their sums of tens of thousands of tokens unsettle the "
        "ridge.",
        "Second round: 64 % with them, 44 % without.",
        f"Counts, and counts with sum, maximum and mean of contexts, by ridge in raw units; {TEST_CYCLES}.",
        "error with them less that without",
        Better(),
        partial(forms.contexts, recipe=forms.RIDGE),
    ),
    Claim(
        "kv-standardised",
        "KV features, standardised",
        "Standardised, they are still worse than none.",
        "Third round: 83 % against 82 %, blamed on collinearity.",
        f"The same with the penalty in units of each constant's effect; {TEST_CYCLES}.",
        "error with them less that without",
        Better(),
        partial(forms.contexts, recipe=forms.SCALED),
    ),
    Claim(
        "log-target",
        "The logarithm of a step as the target",
        "A step whose logarithm is linear in counts is worse.",
        "Second round: it blows up with large features, by a factor of 601 for 64,000 tokens of context.",
        f"exp of a line in prompt tokens, requests and contexts, fitted to logarithms with smearing, against that "
        f"line itself; {TEST_CYCLES}.",
        "error of the logarithm less that of the line",
        Better(),
        forms.logarithms,
    ),
    Claim(
        "floor-or-sum",
        "Floor or sum, by step",
        "A step is the larger of an overhead and of its work, not their sum.",
        "Second round.",
        f"Work is linear in requests, contexts and prompt tokens, all at least 0, above a floor or added to an "
        f"overhead; {TEST_CYCLES}.",
        "error of the sum less that of the floor",
        Better(),
        forms.floor_or_sum,
    ),
    Claim(
        "odd-cycles",
        "The anomaly of CodeLlama-34B, by step",
        "Single steps of CodeLlama-34B are the hardest to predict.",
        "Second round: 99 % on steps, the worst of all models.",
        "The sum of measured kernels, nothing fitted, on the cycles of CodeLlama-34B and on those of Llama-2-70B.",
        "error on its cycles less that on the others",
        Better(),
        cycles.odd_cycles,
    ),
    Claim(
        "mixed-heavy",
        "Few steps with long prompts",
        "Steps with 256 prompt tokens or more are too few to fit a regime to: below 1 %.",
        "Second round: 74 of 77,816 steps.",
        "The share of such batches among all usable cycles.",
        "share of cycles",
        Limit(1.0, below=True),
        cycles.heavy_share,
    ),
    Claim(
        "mixed-additive",
        "Are mixed batches additive?",
        "A step that does both takes as long as a prefill step and a decode step together: step(mixed) = "
        "step(prefill) + step(decode).",
        "Assumed wherever the exercise sums phases.",
        "On the cycles whose mixed batch was recorded itself: a line through the pure decode cycles of the run at "
        "the decodes of the batch, plus the sum of measured kernels of a step with its prompts alone.",
        "sum of both less the mixed step, in percent of it",
        Same(5.0, "%"),
        lambda world: cycles.additive(world.cycles),
    ),
    Claim(
        "token-ratio",
        "Is the ratio of prefill and decode cost 13 a token?",
        "A token of prefill and a token of decode differ in cost by a factor of 13.",
        "An earlier round. Constants of the fourth make a decode token 13 times as dear as a prompt token for "
        "Mixtral, 29 to 45 times for the Llama-2 models.",
        "A law of each run that is linear in prompt tokens, decode tokens and contexts, with one ratio of the first "
        "two for all; least squares of relative errors on all cycles, blocks of 20 resampled.",
        "cost of a decode token over that of a prompt token",
        Ratio(13.0, either=True),
        lambda world: cycles.token_ratio(world.cycles),
    ),
    Claim(
        "overlap",
        "Do compute and memory overlap in part?",
        "The shorter of compute and memory time is hidden in part: step = a max + (1 - a) sum, with a between 0 and 1.",
        "A proposal of the exercise for its analytic components.",
        "Compute: FLOPs of products and attention over the peak. Memory: weights and KV cache over bandwidth. "
        "Non-negative least squares on all cycles, a constant for each run, and a cost of each request and layer; "
        "blocks of 20 resampled.",
        "share a",
        Inside(0.05),
        lambda world: cycles.overlap(world.cycles),
    ),
)
CLAIMS = LOADS + CYCLES
