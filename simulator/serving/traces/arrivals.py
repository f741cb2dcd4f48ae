"""Whether the arrivals of a trace, which are in seconds, look like milliseconds."""

from __future__ import annotations

import numpy as np

# A service may be quiet: one of three requests an hour needs two weeks for MANY requests. So a trace is doubted if its
# median gap is at least SPARSE_S and it has MANY requests or spans LONG_S. The median, as nights may be silent.
SPARSE_S = 100.0
MANY = 1_000
LONG_S = 60 * 86_400.0
# No date: seconds since 1970 have ten digits until 2286, milliseconds have had twelve since 1973.
SECONDS_SINCE_1970 = 1e9
NO_DATE = 1e11


def in_milliseconds(arrival_s: np.ndarray, name: str) -> tuple[str, ...]:
    """A note if the column arrival_s of the trace `name` can hardly be in seconds; no note if it is plausible.

    >>> in_milliseconds(np.arange(2_000) * 500.0, "ms.csv")[0].partition(": if")[0]
    'arrival_s of ms.csv spans 999,500 s, 12 days, and its 2,000 requests come 500 s apart (median)'
    >>> in_milliseconds(np.arange(500) * 1_200.0, "three an hour for a week.csv")
    ()
    """
    arrival_s = np.sort(arrival_s[~np.isnan(arrival_s)])
    if len(arrival_s) < 2:
        return ()
    first, span_s, gap_s = arrival_s[0], arrival_s[-1] - arrival_s[0], float(np.median(np.diff(arrival_s)))
    remedy = "they are ms, divide the column by 1,000"
    if first >= NO_DATE:
        return (f"arrival_s of {name} begins at {first:.0f}, which is no date in seconds since 1970: if {remedy}",)
    dated = first >= SECONDS_SINCE_1970
    if dated or gap_s < SPARSE_S or not (len(arrival_s) >= MANY or span_s >= LONG_S):
        return ()
    spans = f"arrival_s of {name} spans {span_s:,.0f} s, {span_s / 86_400:,.0f} days"
    return (f"{spans}, and its {len(arrival_s):,} requests come {gap_s:,.0f} s apart (median): if {remedy}",)
