"""The two interfaces of the host simulator, BLIS, for which a latency model can be written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A host branch: the overhead methods of its latency model beside StepTime and QueueingTime.

    `overheads` pairs the Go method with the program's function; `token_type` is the element type of a
    request's prompt there; `remarks` is what a reader of the file must know about that host.
    """

    name: str
    branch: str
    overheads: tuple[tuple[str, str], ...]
    token_type: str
    remarks: tuple[str, ...]


# how the blis-5 host keeps time otherwise than the replay, whose rules are those of blis-4
BLIS_5_DIFFERS = (
    "a completed request gets one more inter-token entry (last step + per-token time)",
    "there is no overhead at completion: the program's completion_time is lost",
    "requests queued in the same microsecond at an idle instance start parallel chains of steps",
    "after an eviction a batch may hold requests that the step does not reach, with their last token counts",
)

_BLIS_4 = Target(
    "blis-4",
    "main",
    (("OutputTokenProcessingTime", "output_token_time"), ("PostDecodeFixedOverhead", "completion_time")),
    "TokenID",
    ("Target blis-4: the four methods of the latency model of BLIS, main branch, whose rules of time are those of",
     "the replay in which the program was scored."),
)  # fmt: skip

_BLIS_5 = Target(
    "blis-5",
    "stepml-experiments",
    (
        ("OutputTokenProcessingTime", "output_token_time"),
        ("SchedulingProcessingTime", "scheduling_time"),
        ("PreemptionProcessingTime", "preemption_time"),
    ),
    "int",
    ("Target blis-5: the five methods of the latency model of BLIS, stepml-experiments branch. Each method agrees",
     "with the program, but that host keeps time differently, and request times differ from the scored replay:",
     *(f"  - {text};" for text in BLIS_5_DIFFERS[:-1]),
     f"  - {BLIS_5_DIFFERS[-1]}.",
     "Parity of whole runs is claimed for blis-4 only."),
)  # fmt: skip

TARGETS = {t.name: t for t in (_BLIS_4, _BLIS_5)}
