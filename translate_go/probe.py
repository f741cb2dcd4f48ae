"""A small Go program that reads batches and prints what emitted models make of them, for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from translate_go.stub import MODULE
from translate_go.target import Target
from translate_go.vectors import Batch

_EXPOSE = """\
package latency

import (
	"math"

	"{module}/sim"
)

// Bits are those of the step time before truncation, 0 and -0 alike, every NaN alike.
func (m *Evolved) Bits(batch []*sim.Request) uint64 {{
	us := m.stepMicros({argument})
	if us != us {{
		return math.Float64bits(math.Float64frombits(0x7ff8000000000000))
	}}
	return math.Float64bits(us + 0)
}}
"""

_MAIN = """\
package main

import (
	"bufio"
	"fmt"
	"os"

{imports}
	"{module}/sim"
)

type model interface {{
	sim.LatencyModel
	Bits(batch []*sim.Request) uint64
}}

func fill[T any](prompt *[]T, n int) {{
	*prompt = make([]T, n)
}}

func must(m any, err error) model {{
	if err != nil {{
		panic(err)
	}}
	return m.(model)
}}

func main() {{
	in := bufio.NewReader(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	models := []model{{
{models}
	}}
	var batches, prompts, rows int
	fmt.Fscan(in, &batches, &prompts)
	for ; batches > 0; batches-- {{
		var batch []*sim.Request
		for fmt.Fscan(in, &rows); rows > 0; rows-- {{
			var count, prompt int
			req := &sim.Request{{}}
			fmt.Fscan(in, &count, &prompt, &req.ProgressIndex, &req.NumNewTokens)
			fill(&req.InputTokens, prompt)
			for ; count > 0; count-- {{
				batch = append(batch, req)
			}}
		}}
		for _, m := range models {{
			fmt.Fprint(out, m.StepTime(batch), " ", m.Bits(batch), " ")
		}}
		fmt.Fprintln(out)
	}}
	for ; prompts > 0; prompts-- {{
		var n int
		fmt.Fscan(in, &n)
		req := &sim.Request{{}}
		fill(&req.InputTokens, n)
		for _, m := range models {{
			fmt.Fprint(out, m.QueueingTime(req), " 0 ")
		}}
		fmt.Fprintln(out)
	}}
{overheads}
}}
"""

_OVERHEAD = """\
	for _, m := range models {{
		fmt.Fprint(out, m.{method}(), " 0 ")
	}}
	fmt.Fprintln(out)"""


def probe_files(packages: Mapping[str, Mapping[str, str]], models: Iterable[str], target: Target) -> dict[str, str]:
    """The Go files of each package in a folder of its own, with a window on the time before truncation, and the main
    program, which asks `models`, Go expressions in which `must` unwraps a result with an error."""
    files: dict[str, str] = {}
    for name, sources in packages.items():
        argument = "sumBatch(batch)" if "func sumBatch(" in sources["evolved.go"] else ""
        files |= {f"{name}/{file}": text for file, text in sources.items() if _compiled(file)}
        files[f"{name}/bits.go"] = _EXPOSE.format(module=MODULE, argument=argument)
    imports = "\n".join(f'\t{name} "{MODULE}/sim/latency/{name}"' for name in packages)
    listed = "\n".join(f"\t\t{model}," for model in models)
    overheads = "\n".join(_OVERHEAD.format(method=method) for method, _ in target.overheads)
    files["cmd/main.go"] = _MAIN.format(imports=imports, module=MODULE, models=listed, overheads=overheads)
    return files


def _compiled(file: str) -> bool:
    return file.endswith(".go") and not file.endswith("_test.go")


def probe_input(batches: list[Batch], prompts: Iterable[int]) -> str:
    """What the main program reads: counts, then each batch as its number of rows and the rows, then prompts."""
    lengths = list(prompts)
    lines = [f"{len(batches)} {len(lengths)}"]
    lines += [" ".join(map(str, [len(batch), *(x for row in batch for x in row)])) for batch in batches]
    return "\n".join([*lines, *map(str, lengths)]) + "\n"
