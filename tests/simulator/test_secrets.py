"""Secrets of the environment: no process that we start has them, and no text of a server keeps them."""

from __future__ import annotations

import ast
import base64
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from paths import ROOT

from evolve.search.pool.process import WorkerCall, WorkerProcess
from simulator.common.secrets import redact, without_secrets

KEY = "sk-Proj+9Zq/xK3v_Lm7T-w2Rb8Yd4"
HIDDEN = ("VENDOR_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "my_password", "SNOWFLAKE_JWT", "X_CREDENTIALS")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - without_secrets().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("VENDOR_API_KEY", KEY)


def test_variables_named_like_secrets_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HIDDEN:
        monkeypatch.setenv(name, KEY)
    public = without_secrets()
    assert not public.keys() & {*HIDDEN} and KEY not in public.values()
    assert public == {name: value for name, value in os.environ.items() if name not in HIDDEN}
    assert {"PATH", "HOME"} & os.environ.keys() <= public.keys()


def test_a_worker_process_has_no_secrets() -> None:
    with closing(WorkerProcess({"OMP_NUM_THREADS": "1"})) as process:
        assert process.call(WorkerCall(os.getenv, ("VENDOR_API_KEY",))) is None
        assert process.call(WorkerCall(os.getenv, ("OMP_NUM_THREADS",))) == "1"
        assert KEY.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()


@pytest.mark.parametrize("package", ["simulator", "evaluator", "translate_go", "evolve"])
def test_every_process_is_started_without_secrets(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("subprocess.", "os.spawn", "os.exec")):
                assert "env" in {option.arg for option in node.keywords}, f"{path}, line {node.lineno}"


def encoded(text: str, before: str = "") -> str:
    return base64.b64encode((before + text).encode()).decode()


WAYS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "reversed": lambda key: key[::-1],
    "lower": str.lower,
    "spaces": " ".join,
    "lines": "\n".join,
    "two lines": lambda key: f"{key[:14]}\r\n   {key[14:]}",
    "signs": "-".join,
    "invisible": "\u200b".join,
    "base64": encoded,
    "base64 of more": lambda key: encoded(key, "Bearer: "),
    "base64 of others": lambda key: encoded(key, "key="),
    "base64 for addresses": lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    "base64 reversed": lambda key: encoded(key)[::-1],
    "base64 of the reversed": lambda key: encoded(key[::-1]),
    "base64 in lines": lambda key: "\n".join(encoded(key)[i : i + 7] for i in range(0, 60, 7)),
    "percent": lambda key: quote(key, safe=""),
    "all percent": lambda key: "".join(f"%{ord(c):02X}" for c in key),
    "percent of signs": lambda key: "".join(c if c.isalnum() else f"%{ord(c):02x}" for c in key),
    "hex": lambda key: key.encode().hex(" "),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_secret_goes_however_it_is_written(way: str) -> None:
    written = WAYS[way](KEY)
    left = redact(f"Wrong key: {written}. Correct it.")
    assert left.startswith("Wrong key: ") and left.endswith(" Correct it.") and "[key]" in left
    rest = left.removeprefix("Wrong key: ").removesuffix(". Correct it.").replace("[key]", "")
    assert len(rest) <= 10  # such as QmVhcmVyOi for what stood before, and bits of the last three characters


@pytest.mark.parametrize("at", range(len(KEY) - 8 + 1))
def test_any_eight_characters_of_a_secret_go(at: int) -> None:
    piece = KEY[at : at + 8]
    for written in (piece, piece[::-1], " ".join(piece), quote(piece, safe=""), piece.encode().hex()):
        assert redact(f"({written})") == "([key])"
    assert redact(piece) == "[key]"  # at the end of a text, too
    assert redact(f"({KEY[at : at + 4]})") == f"({KEY[at : at + 4]})"


def test_ordinary_text_stays_and_signs_alone_are_secrets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def step_time(b, s, *, weights: one = 1.25e-07):\n    return weights * b.weight_read_us + 0.73656b742d\n"
    assert redact(text) == text
    monkeypatch.setenv("OTHER_SECRET", "§§%%&&//()")
    assert redact(f"a §§%%&&//() {KEY} b") == "a [key] [key] b"
    assert redact(f"{KEY} {KEY}x") == "[key] [key]x"


def test_redaction_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONG_CREDENTIALS", (KEY * 100)[:2500])
    taken = []
    for size in (50_000, 400_000):
        for text in ("x" * size, (KEY + " ") * (size // len(KEY)), " ".join(KEY[:7] * (size // 14))):
            since = time.process_time()
            redact(text)
            taken.append(time.process_time() - since)
    assert sum(taken[3:]) < 8 * 4 * sum(taken[:3]) + 0.2


def test_a_folder_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm sets this one: its last words are those of many notes on serving."""
    monkeypatch.setenv("CUSTOM_TIKTOKEN_CACHE_DIR", "/lib/litellm_core_utils/tokenizers")
    assert redact("running requests.\nTokenization costs") == "running requests.\nTokenization costs"
