"""The command line: what is asked for reaches the session, and bad usage is one line, exit code 2, nothing created."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness import __main__ as cli
from harness.common.errors import ConfigError, RunError
from harness.config.run_config import RunConfig
from helpers import child_env, cli_command, run_cli, run_python

CORE = min(os.sched_getaffinity(0))


class FakeSession:
    """Stands in for the supervisor: keeps what it was called with, answers or raises what it was told to."""

    def __init__(self) -> None:
        self.config: RunConfig | None = None
        self.command: list[str] = []
        self.outcome: int | BaseException = 0

    def run_session(self, config: RunConfig, command: list[str]) -> int:
        self.config, self.command = config, command
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    fake = FakeSession()
    module = ModuleType("harness.session.supervisor")
    module.__dict__["run_session"] = fake.run_session
    monkeypatch.setitem(sys.modules, "harness.session.supervisor", module)
    monkeypatch.setattr(sys, "argv", ["isorate"])
    monkeypatch.delenv("ISORATE_PROGRAM", raising=False)
    return fake


def config_of(session: FakeSession, *words: str) -> RunConfig:
    assert cli.main(list(words)) == 0
    assert session.config is not None
    return session.config


# What reaches the session


@pytest.mark.parametrize("words", [(), ("run",)])
def test_run_is_the_default_command(session: FakeSession, words: tuple[str, ...]) -> None:
    assert config_of(session, *words) == RunConfig()


def test_a_flag_first_means_run(session: FakeSession) -> None:
    assert config_of(session, "--schedule", "relative").schedule == "relative"


def test_the_published_command_line_is_understood(session: FakeSession) -> None:
    words = (
        "--hf-model-id gpt2 --device cuda --dtype bfloat16 --submit-schedule absolute --prompt Hello "
        "--prompt-repeats 256 --unique-prompts --num-requests 256 --max-new-tokens 1 --max-batch-size 16 "
        "--prefill-max-batch-size 16 --submit-interval-ms 1 --no-stop-on-eos --no-prefix-cache --pretok "
        "--tokenize-workers 0 --warmup-runs 1 --repeat-runs 5"
    )
    assert config_of(session, *words.split()) == RunConfig(
        model="gpt2", device="cuda", dtype="bfloat16", schedule="absolute", prompt="Hello", prompt_repeats=256,
        unique_prompts=True, num_requests=256, max_new_tokens=1, max_batch_size=16, prefill_max_batch_size=16,
        submit_interval_ms=1, stop_on_eos=False, prefix_cache=False, pretok=True, tokenize_workers=0, warmup_runs=1,
        repeat_runs=5,
    )  # fmt: skip


def test_every_other_flag_reaches_its_setting(session: FakeSession, tmp_path: Path) -> None:
    words = (
        f"--engine null --rate 3 --pacer python --wait sleep --null-hold-gil --null-service-ms 1.5 --null-service spin "
        f"--null-crash-at-step 3 --null-hang-at-step 4 --null-start-delay 0.5 --engine-cores {CORE} --submitter-cores "
        f"{CORE} --harness-cores {CORE} --collector-dir {tmp_path} --start-timeout 7 --stall-timeout 8 "
        f"--drain-timeout 9 --warmup-requests 2 --out {tmp_path}/o --save-outputs --allow-invalid --quiet --seed 5"
    )
    assert config_of(session, *words.split()) == RunConfig(
        engine="null", rate=3, pacer="python", wait="sleep", null_hold_gil=True, null_service_ms=1.5,
        null_service="spin", null_crash_at_step=3, null_hang_at_step=4, null_start_delay_s=0.5, engine_cores=[CORE],
        submitter_cores=[CORE], harness_cores=[CORE], collector_dir=tmp_path, start_timeout_s=7, stall_timeout_s=8,
        drain_timeout_s=9, warmup_requests=2, out=tmp_path / "o", save_outputs=True, allow_invalid=True, quiet=True,
        seed=5,
    )  # fmt: skip


def test_sampling_flags_reach_their_settings(session: FakeSession) -> None:
    config = config_of(session, "--temperature", "0.7", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.05")
    assert (config.temperature, config.top_k, config.top_p, config.min_p) == (0.7, 40, 0.9, 0.05)


def test_stop_flags_reach_their_settings(session: FakeSession) -> None:
    config = config_of(session, "--stop", "\n\n", "--stop-ids", "7,9", "--stop=-end-", "--abort-after-ms", "2.5")
    assert (config.stop, config.stop_ids, config.abort_after_ms) == (("\n\n", "-end-"), (7, 9), 2.5)


def test_engine_flags_reach_their_settings(session: FakeSession) -> None:
    words = (
        "--device cuda --block-size 32 --kv-blocks 500 --prefill-max-tokens 256 --chunked-prefill off --scheduling "
        "decode_first --prefix-cache off --paged-attn off --cuda-graph on --compile on --overlap off --nvtx on"
    )
    assert config_of(session, *words.split()) == RunConfig(
        device="cuda", block_size=32, kv_blocks=500, prefill_max_tokens=256, chunked_prefill=False,
        scheduling="decode_first", prefix_cache=False, paged_attn=False, cuda_graph=True, compile=True, overlap=False,
        nvtx=True,
    )  # fmt: skip
    assert config_of(session, "--kv-memory", "1GiB").kv_memory == 1 << 30


def test_an_on_off_flag_by_itself_is_on(session: FakeSession) -> None:
    """So the published command lines, in which they are switches, mean what they meant."""
    config = config_of(session, "--paged-attn", "--cuda-graph", "--nvtx", "--device", "cuda")
    assert (config.paged_attn, config.cuda_graph, config.nvtx) == (True, True, True)


@pytest.mark.parametrize("words", [["--no-prefix-cache"], ["--prefix-cache", "off"], ["--prefix-cache=off"]])
def test_the_prefix_cache_is_turned_off_by_either_spelling(session: FakeSession, words: list[str]) -> None:
    assert config_of(session, *words).prefix_cache is False


def test_timeouts_take_the_name_of_their_setting_too(session: FakeSession) -> None:
    assert config_of(session, "--stall-timeout-s", "3").stall_timeout_s == 3


def test_the_command_that_repeats_the_run_holds_every_argument(session: FakeSession) -> None:
    config_of(session, "run", "--prompt", "two words", "--rate=3")
    assert session.command == ["isorate", "run", "--prompt", "two words", "--rate=3"]


def test_a_wrapper_names_itself_in_the_command(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISORATE_PROGRAM", "./my run.sh")
    config_of(session, "--rate", "3")
    assert session.command == ["./my run.sh", "--rate", "3"]


def test_a_home_folder_is_expanded(session: FakeSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_of(session, "--out=~/o").out == tmp_path / "o"


# Exit codes


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_the_session_s_exit_code_is_ours(session: FakeSession, code: int) -> None:
    session.outcome = code
    assert cli.main([]) == code


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [(ConfigError("bad input"), 2, "isorate: bad input\n"), (RunError("it died"), 1, "isorate: it died\n"),
     (KeyboardInterrupt(), 130, "")],
)  # fmt: skip
def test_an_error_becomes_its_exit_code(
    session: FakeSession, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    session.outcome = error
    assert cli.main([]) == code
    assert capsys.readouterr().err == line


def test_control_characters_of_a_message_never_reach_the_terminal(
    session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    session.outcome = ConfigError("evil\n\x1b[31m\r name")
    cli.main([])
    assert capsys.readouterr().err == "isorate: evil\\n\\x1b[31m\\r name\n"


# Bad usage: exit code 2, one line that names the culprit, nothing created

BAD_USAGE: dict[str, tuple[list[str], list[str]]] = {
    "unknown flag": (["--ratee", "3"], ["--ratee", "did you mean --rate?"]),
    "unknown flag after run": (["run", "--num-request", "3"], ["--num-request", "--num-requests"]),
    "unknown flag with value": (["--sched=absolute"], ["--sched"]),
    "unknown flag that is like none": (["--zzz"], ["--zzz"]),
    "trace that is not there": (["--trace", "x.csv"], ["--trace"]),
    "unknown command": (["reprot", "x"], ["'reprot'", "did you mean report?"]),
    "unknown command that is like none": (["zzz"], ["'zzz'", ", ".join(cli.COMMANDS)]),
    "argument too many": (["--rate", "3", "extra"], ["'extra'"]),
    "flag without value": (["--rate"], ["--rate"]),
    "switch with value": (["--pretok=yes"], ["--pretok"]),
    "negative interval": (["--submit-interval-ms", "-1"], ["--submit-interval-ms", ">= 0", "'-1'"]),
    "NaN rate": (["--rate", "nan"], ["--rate", "finite", "'nan'"]),
    "zero rate": (["--rate", "0"], ["--rate", "> 0"]),
    "absurd rate": (["--rate", "1e-300"], ["--rate", "366 days"]),
    "0 requests": (["--num-requests", "0"], ["--num-requests", "from 1 to"]),
    "negative new tokens": (["--max-new-tokens", "-1"], ["--max-new-tokens", "from 0 to"]),
    "rate and interval": (["--rate", "3", "--submit-interval-ms", "3"], ["--rate", "--submit-interval-ms"]),
    "plan and rate": (["--plan", "p.npz", "--rate", "3"], ["--plan", "--rate"]),
    "missing prompt file": (["--prompts", "absent.jsonl"], ["--prompts", "absent.jsonl", "No such file"]),
    "folder as prompt file": (["--prompts", "folder"], ["--prompts", "folder", "directory"]),
    "empty prompt file": (["--prompts", "empty.txt"], ["--prompts", "empty.txt", "no prompt"]),
    "broken prompt file": (["--prompts", "broken.jsonl"], ["broken.jsonl", "line 2", "'prompt'"]),
    "missing plan": (["--plan", "absent.npz"], ["absent.npz", "No such file"]),
    "no plan": (["--plan", "broken.jsonl"], ["broken.jsonl", "not a plan file"]),
    "unknown built-in model": (["--model", "builtin:gpt7"], ["--model", "builtin:gpt7", "builtin:gpt2"]),
    "unknown model folder": (["--model", "./absent"], ["--model", "./absent"]),
    "unknown engine": (["--engine", "vllm"], ["--engine", "vllm", "native, null"]),
    "neither on nor off": (["--paged-attn", "maybe"], ["--paged-attn", "on or off", "'maybe'"]),
    "CUDA graph without CUDA": (["--cuda-graph", "on"], ["--cuda-graph", "CUDA device", "cpu"]),
    "draws with transformers": (["--engine", "transformers", "--temperature", "1"], ["--temperature", "greedy"]),
    "cache flag with null engine": (["--engine", "null", "--block-size", "16"], ["--block-size", "--engine null"]),
    "empty stop": (["--stop", ""], ["--stop", "from 1 to"]),
    "unknown core": (["--engine-cores", "60000"], ["--engine-cores", "60000"]),
    "no core list": (["--submitter-cores", "one"], ["--submitter-cores", "'one'"]),
    "null flag without null engine": (["--null-hold-gil"], ["--null-hold-gil", "--engine null"]),
    "model flag with null engine": (["--engine", "null", "--dtype", "float32"], ["--dtype", "--engine null"]),
    "no permission to write": (["--engine", "null", "--out", "/proc/nowhere"], ["/proc/nowhere"]),
    "result folder that is full": (["--engine", "null", "--out", "folder"], ["--out", "folder"]),
    "result folder that is a file": (["--engine", "null", "--out", "empty.txt"], ["--out", "empty.txt"]),
    "collector folder that is absent": (["--collector-dir", "absent"], ["--collector-dir", "absent"]),
    "report of nothing": (["report", "absent"], ["absent"]),
    "report of no result folder": (["report", "folder"], ["summary.json"]),
    "report without a folder": (["report"], ["DIR"]),
    "recover of no result folder": (["recover", "folder"], ["folder"]),
    "unknown flag of report": (["report", "--jsn", "folder"], ["--jsn"]),
    "no UTF-8": (["--prompt", "\udcff"], ["argument 2", "UTF-8"]),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with the inputs that BAD_USAGE names."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "broken.jsonl").write_text('{"prompt": "good"}\n{"prompt": 3}\n')
    return tmp_path


@pytest.mark.parametrize("kind", BAD_USAGE)
def test_bad_usage_is_one_line_and_exit_code_2_and_creates_nothing(kind: str, place: Path) -> None:
    words, named = BAD_USAGE[kind]
    before = sorted(place.rglob("*"))
    done = run_cli(words, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("isorate: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n")
    assert [word for word in named if word not in done.stderr] == []
    assert sorted(place.rglob("*")) == before


# Help, version, start-up


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_overview_lists_the_commands(flag: str) -> None:
    done = run_cli([flag])
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {command}" in done.stdout for command in ("run", "report", "recover"))


def test_the_help_of_run_is_grouped() -> None:
    done = run_cli(["run", "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    groups = ["Load:", "Prompts:", "Engine:", "Null engine", "Processes and cores:", "Runs:", "Output:"]
    assert all(f"\n{group}" in done.stdout for group in groups)


def test_help_after_a_flag_is_the_help_of_run() -> None:
    assert "--submit-interval-ms" in run_cli(["--pretok", "--help"]).stdout


@pytest.mark.parametrize("command", ["report", "recover"])
def test_a_command_on_a_folder_has_help(command: str) -> None:
    done = run_cli([command, "--help"])
    assert done.returncode == 0 and "DIR" in done.stdout


def test_the_version_is_one_line() -> None:
    done = run_cli(["--version"])
    assert done.returncode == 0 and done.stdout.startswith("isorate ") and done.stdout.count("\n") == 1


def test_the_command_line_loads_nothing_heavy() -> None:
    code = "import harness.__main__ as cli, sys; cli.main(['--rate', '-1']); print(*sys.modules)"
    heavy = {"numpy", "numba", "scipy", "rich", "zmq", "torch"}
    assert heavy.isdisjoint(run_python(code).split())


def test_a_reader_that_closes_the_pipe_gets_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            cli_command(["--help"]), stdout=write_end, stderr=subprocess.PIPE, env=child_env(), check=False
        )
    finally:
        os.close(write_end)
    assert done.stderr == b""


def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            cli_command(["--help"]), stdout=full, stderr=subprocess.PIPE, text=True, env=child_env(), check=False
        )
    assert done.returncode == 1 and done.stderr == "isorate: cannot write: No space left on device\n"


# Result folders


def test_report_prints_a_summary_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from harness.report import terminal
    from harness.report.summary import SCHEMA

    shown: list[Any] = []

    def render(summary: Any, console: Any, folder: Path, *, all_checks: bool) -> None:
        shown.append((summary, folder, all_checks))

    monkeypatch.setattr(terminal, "render_terminal", render)
    (tmp_path / "summary.json").write_text(f'{{"schema": "{SCHEMA}"}}')
    assert cli.main(["report", str(tmp_path)]) == 0
    assert cli.main(["report", str(tmp_path), "--checks"]) == 0
    assert shown == [({"schema": SCHEMA}, tmp_path, False), ({"schema": SCHEMA}, tmp_path, True)]


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", '{"schema": "isorate.summary/99"}', "[" * 100_000])
def test_report_refuses_what_is_no_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    assert cli.main(["report", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "summary.json" in err and err.count("\n") == 1
