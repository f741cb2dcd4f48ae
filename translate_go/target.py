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
     "  - it adds one more inter-token entry (last step + per-token time) when a request completes;",
     "  - it has no overhead at completion, so the program's completion_time is lost;",
     "  - requests queued in the same microsecond at an idle instance start parallel chains of steps.",
     "Parity is claimed for blis-4 only."),
)  # fmt: skip

TARGETS = {t.name: t for t in (_BLIS_4, _BLIS_5)}
