"""Experiments as the text of an experiments file, laid out like those that ship.

The same experiments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from evolve import __version__
from evolve.ingest.entry import unique_ids

HEADER = f"""\
# Written by evolve ingest {__version__} from folders of vLLM traces and load-generator reports; source_run names them.
# Units: milliseconds, tokens, requests/s, seconds. Observed figures are of completed requests only.
# itl_mean_ms = (mean E2E - mean TTFT) / (output_len - 1); harness_itl_mean_ms is the load generator's own figure, which
#   may count blank lines of the stream as tokens: carried along, never fitted to. So is reported_output_len_mean.
# overloaded runs are not fitted by default; x_note says why a run is one.
# The next evolve ingest into this folder writes this file anew: edit a copy.
"""

LINE_WIDTH = 95  # a mapping on one line passes it by up to one value


class _Dumper(yaml.SafeDumper):
    """Mappings of plain values, and lists of them, stand on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, flow_style=all(map(_is_plain, mapping.values())))

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        short = all(isinstance(v, Mapping) and v and all(map(_is_plain, v.values())) for v in sequence)
        return super().represent_sequence(tag, sequence, flow_style=short)


def experiments_yaml(entries: Sequence[Mapping[str, Any]]) -> str:
    """The file's text. Ids that two experiments share become the folders' names."""
    raw = {"version": 1, "experiments": unique_ids(entries)}
    text = yaml.dump(raw, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=LINE_WIDTH)
    return HEADER + text


def _is_plain(value: object) -> bool:
    return not isinstance(value, Mapping | list)
