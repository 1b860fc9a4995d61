"""Closed streams, a closed terminal, a deleted folder, words of a dying engine: each once cost a report or a line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import make_collector

from harness.common.errors import ConfigError
from harness.config.run_config import RunConfig
from harness.session.events import Events
from harness.session.supervisor import START_END_S, Supervisor
from harness.session.workspace import absolute

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_a_closed_stream_is_stood_in_for_by_dev_null(closed: tuple[int, ...]) -> None:
    """Its number must not go to a socket, and `sys.stdout` must be there to be printed to."""
    code = (
        "import os; from harness.__main__ import open_standard_streams; open_standard_streams(); import sys;"
        "print('x', flush=True); sys.stderr.flush();"
        f"os._exit(0 if all(os.path.samefile(f'/proc/self/fd/{{n}}', '/dev/null') for n in {closed!r}) else 7)"
    )
    redirect = " ".join(f"{number}>&-" for number in closed)
    command = ["bash", "-c", f'exec "$0" -c "$1" {redirect}', sys.executable, code]
    assert subprocess.run(command, check=False, cwd=ROOT, timeout=60).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_asks_for_an_end_interrupts_the_run(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)  # whoever started the tests may have ignored it
    events = Events()
    try:
        with events.signals():
            os.kill(os.getpid(), number)
            assert events.interrupted
    finally:
        signal.signal(number, before)
        events.close()


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    events = Events()
    try:
        with events.signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not events.interrupted
    finally:
        signal.signal(signal.SIGHUP, before)
        events.close()


def test_a_deleted_current_folder_is_bad_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="the current folder does not exist any more"):
        absolute(Path("results"))


def test_an_exception_of_a_users_engine_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.terminal.render_terminal", lambda summary, console, **options: None)
    supervisor = supervisor_with(tmp_path, [])
    supervisor.detail = "the engine process died: ValueError: a\n\x1b[31mb"
    supervisor._print(SimpleNamespace(summary={}))  # type: ignore[arg-type]
    assert capsys.readouterr().err == "isorate: the engine process died: ValueError: a\\n\\x1b[31mb\n"


def test_children_that_still_load_are_not_waited_for_as_if_they_measured(tmp_path: Path) -> None:
    """They hear no STOP while they import: Ctrl-C at start-up took five seconds for each of the two."""
    waited: list[float] = []
    child = SimpleNamespace(name="engine", process=SimpleNamespace(pid=0), stop=lambda: None, end=waited.append)
    supervisor_with(tmp_path, [child])._stop()
    assert waited == [START_END_S] and START_END_S <= 1


def supervisor_with(folder: Path, children: list[object]) -> Supervisor:
    """One whose session was never opened."""
    return Supervisor(
        RunConfig(), [], SimpleNamespace(), SimpleNamespace(), make_collector(folder), SimpleNamespace(), [],  # type: ignore[arg-type]
        children=children,  # type: ignore[arg-type]
    )  # fmt: skip
