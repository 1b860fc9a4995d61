"""run.sh: set-up once, under a lock, redone when it must be, and everything passed on as it stands.

Most tests give it a stand-in for Python that answers run.sh's questions at once and writes down what it was asked;
one goes through a real virtual environment with nothing to install.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import ROOT, wait_until

ARGS = ["run", "--prompt", "two words", "", "*", "$HOME", "a'b\"c", "back\\slash", "--", "ü\n2"]
TOOLS = ("bash", "env", "flock", "grep", "mkdir", "mv", "readlink", "rm", "sleep", "tail")

# Knows just enough to pass for an interpreter and for the one in the .venv that it "makes".
FAKE_PYTHON = """#!{bash}
calls={calls}
case "$*" in
    *"os.path.realpath(sys.executable)"*) echo {fake} ;;
    *"sys.version_info[:2]"*) echo "${{FAKE_VERSION:-3.13}}" ;;
    *"sys.exit(sys.version_info < "*) [[ ${{FAKE_VERSION:-3.13}} != 3.9 ]] ;;
    *"import venv, ensurepip"*) [[ -z ${{FAKE_NO_VENV:-}} ]] ;;
    *platform.python_version*) echo 3.13.0 ;;
    "-I -m venv "*) echo venv >>"$calls"; mkdir -p "${{@: -1}}/bin"; : >"${{@: -1}}/pyvenv.cfg"
        cp {fake} "${{@: -1}}/bin/python" ;;
    *" -m pip install "*) echo pip >>"$calls"; echo "Collecting things"
        [[ ! -e {folder}/pip-sleeps ]] || {{ : >{folder}/pip-runs; sleep "$(<{folder}/pip-sleeps)"; }}
        [[ ! -e {folder}/pip-fails ]] || {{ echo "ERROR: no such package"; exit 7; }} ;;
    "-I -") read -r -d '' || true; echo linked >>"$calls" ;;
    "-m harness"* | "-m pytest"*) echo "pid $$"; echo "cwd $PWD"; printf '<%s>' "$@"; exit "${{FAKE_EXIT:-0}}" ;;
    *) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


@dataclass
class Checkout:
    """A copy of run.sh with a lock file of its own, and a PATH of our choosing."""

    folder: Path
    tools: Path
    calls_file: Path

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    def env(self, **extra: str) -> dict[str, str]:
        return {"PATH": str(self.tools), "HOME": str(self.folder), "LANG": "C.UTF-8", **_marks(), **extra}

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            # A suite that runs in the background ignores SIGINT, and a shell cannot undo what it inherits.
            ["/usr/bin/env", "--default-signal=INT", str(self.folder / "run.sh"), *args],
            env=self.env(**env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, **env)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def calls(self) -> list[str]:
        return self.calls_file.read_text().split() if self.calls_file.exists() else []

    def pip_sleeps(self, seconds: float) -> None:
        (self.folder / "pip-sleeps").write_text(str(seconds))

    def wait_for_pip(self) -> None:
        wait_until((self.folder / "pip-runs").exists, what="pip to run")


def _marks() -> dict[str, str]:
    """What the leak check recognizes children by."""
    return {name: value for name, value in os.environ.items() if name.startswith("ISORATE_TEST")}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = tmp_path / "check out"
    tools = tmp_path / "bin"
    folder.mkdir()
    tools.mkdir()
    shutil.copy(ROOT / "run.sh", folder)
    (folder / "requirements.lock").write_text("# nothing\nthings==1.0\n")
    for tool in (*TOOLS, "cp"):
        path = shutil.which(tool)
        if path:
            (tools / tool).symlink_to(path)
    made = Checkout(folder, tools, tmp_path / "calls")
    fake = tools / "python3.13"
    quoted = {"calls": made.calls_file, "fake": fake, "folder": f"'{folder}'", "bash": shutil.which("bash")}
    fake.write_text(FAKE_PYTHON.format(**quoted))
    fake.chmod(0o755)
    return made


def test_first_run_sets_up_and_says_so_second_is_silent(checkout: Checkout) -> None:
    first = checkout.run("a")
    assert first.returncode == 0, first.stderr
    assert checkout.calls() == ["venv", "pip", "linked"]
    assert "setting up" in first.stderr
    assert "installing 1 packages" in first.stderr
    second = checkout.run("a")
    assert (second.returncode, second.stderr) == (0, "")
    assert checkout.calls() == ["venv", "pip", "linked"]


def test_arguments_exit_code_and_process_are_passed_on(checkout: Checkout) -> None:
    checkout.run()
    process = checkout.start(*ARGS, FAKE_EXIT="3")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    assert out == f"pid {process.pid}\ncwd /\n" + "".join(f"<{arg}>" for arg in ["-m", "harness", *ARGS])


def test_test_runs_pytest_in_the_checkout(checkout: Checkout) -> None:
    done = checkout.run("test", "-k", "a b")
    assert done.stdout.splitlines()[1:] == [f"cwd {checkout.folder}", "<-m><pytest><-k><a b>"]


def test_changed_lock_file_is_followed_in_place(checkout: Checkout) -> None:
    checkout.run()
    (checkout.venv / "mine").touch()
    (checkout.folder / "requirements.lock").write_text("things==1.1\n")
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert checkout.calls() == ["venv", "pip", "linked", "pip", "linked"]
    assert (checkout.venv / "mine").exists()
    assert checkout.run().stderr == ""


def test_lock_file_changed_during_set_up_is_not_taken_as_installed(checkout: Checkout) -> None:
    checkout.pip_sleeps(0.5)
    process = checkout.start()
    checkout.wait_for_pip()
    (checkout.folder / "requirements.lock").write_text("things==1.1\n")
    assert process.communicate(timeout=30)[0]
    checkout.run()
    assert checkout.calls().count("pip") == 2


def test_failed_install_shows_the_log_and_is_redone_afresh(checkout: Checkout) -> None:
    (checkout.folder / "pip-fails").touch()
    failed = checkout.run()
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "ERROR: no such package" in failed.stderr
    assert "isorate-setup.log" in failed.stderr
    (checkout.folder / "pip-fails").unlink()
    (checkout.venv / "half").touch()
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert not (checkout.venv / "half").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_interrupted_set_up_is_redone(checkout: Checkout, number: signal.Signals) -> None:
    checkout.pip_sleeps(30)
    process = checkout.start()
    checkout.wait_for_pip()
    os.killpg(process.pid, number)  # as the terminal does for Ctrl-C
    _, err = process.communicate(timeout=10)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[number], err
    if number != signal.SIGKILL:
        assert "interrupted" in err
    (checkout.folder / "pip-sleeps").unlink()
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert checkout.calls() == ["venv", "pip", "venv", "pip", "linked"]


@pytest.mark.parametrize("with_flock", [True, False])
def test_two_first_runs_set_up_once(checkout: Checkout, with_flock: bool) -> None:
    if not with_flock:
        (checkout.tools / "flock").unlink()
    checkout.pip_sleeps(1)
    first = checkout.start("first")
    checkout.wait_for_pip()
    second = checkout.run("second")
    out, err = first.communicate(timeout=30)
    assert (first.returncode, second.returncode) == (0, 0), err + second.stderr
    assert out.endswith("<first>")
    assert second.stdout.endswith("<second>")
    assert "waiting" in second.stderr
    assert checkout.calls() == ["venv", "pip", "linked"]
    assert not (checkout.folder / ".venv.lock.d").exists()


def test_lock_folder_of_a_killed_set_up_is_named(checkout: Checkout) -> None:
    (checkout.tools / "flock").unlink()
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = checkout.folder / ".venv.lock.d"
    folder.mkdir()
    (folder / "pid").write_text(str(gone.pid))
    done = checkout.run()
    assert done.returncode == 2
    assert f"delete {folder}" in done.stderr


def test_no_python_is_one_clear_line(checkout: Checkout) -> None:
    (checkout.tools / "python3.13").unlink()
    done = checkout.run()
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "needs Python 3.11 or newer (none found on PATH)" in done.stderr
    assert not checkout.venv.exists()


def test_old_python_and_missing_venv_module_are_named(checkout: Checkout) -> None:
    old = checkout.run(FAKE_VERSION="3.9")
    assert (old.returncode, len(old.stderr.splitlines())) == (2, 1)
    assert "python3.13 is 3.9" in old.stderr
    bare = checkout.run(FAKE_NO_VENV="1")
    assert (bare.returncode, len(bare.stderr.splitlines())) == (2, 1)
    assert "apt install python3.13-venv" in bare.stderr


def test_isorate_python_is_obeyed(checkout: Checkout) -> None:
    wrong = checkout.run(ISORATE_PYTHON="/nowhere/python")
    assert wrong.returncode == 2
    assert "/nowhere/python does not run" in wrong.stderr
    mine = checkout.tools / "my python"
    (checkout.tools / "python3.13").rename(mine)
    mine.write_text(mine.read_text().replace("echo " + str(checkout.tools / "python3.13"), f"echo '{mine}'")
                    .replace("cp " + str(checkout.tools / "python3.13"), f"cp '{mine}'"))  # fmt: skip
    done = checkout.run(ISORATE_PYTHON=str(mine))
    assert done.returncode == 0, done.stderr
    assert checkout.run().stderr == ""


def test_interpreter_that_went_away_means_a_new_venv(checkout: Checkout) -> None:
    checkout.run()
    text = (checkout.tools / "python3.13").read_text()
    newer = checkout.tools / "python3.14"
    newer.write_text(text.replace("python3.13", "python3.14"))
    newer.chmod(0o755)
    (checkout.tools / "python3.13").unlink()
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert checkout.calls() == ["venv", "pip", "linked"] * 2


def test_what_run_sh_did_not_make_is_not_deleted(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "precious").touch()
    refused = checkout.run()
    assert refused.returncode == 2
    assert "in the way" in refused.stderr
    (checkout.venv / "pyvenv.cfg").touch()
    no_pip = checkout.run()
    assert no_pip.returncode == 2
    assert (checkout.venv / "precious").exists()
    (checkout.venv / "bin").mkdir()
    shutil.copy(checkout.tools / "python3.13", checkout.venv / "bin" / "python")
    adopted = checkout.run()
    assert adopted.returncode == 0, adopted.stderr
    assert (checkout.venv / "precious").exists()
    assert checkout.calls() == ["pip", "linked"]


def test_works_through_links_and_from_anywhere(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "absolute").symlink_to(checkout.folder / "run.sh")
    (tmp_path / "links" / "relative").symlink_to(Path("..") / checkout.folder.name / "run.sh")
    (tmp_path / "twice").symlink_to(Path("links") / "relative")
    for command, cwd in [
        ("links/absolute", tmp_path),
        ("./links/relative", tmp_path),
        ("../twice", tmp_path / "links"),
        ("./run.sh", checkout.folder),
    ]:
        done = subprocess.run([command, "x"], cwd=cwd, env=checkout.env(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.splitlines()[1] == f"cwd {cwd}"
    # found on PATH, and by `bash run.sh`, where the name has no slash
    done = subprocess.run(["bash", "run.sh"], cwd=checkout.folder, env=checkout.env(), check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_overhead_is_small(checkout: Checkout) -> None:
    """Under 0.2 s on any machine; about 5 ms on an idle one, and no process is started for the check."""
    checkout.run()
    seconds = []
    for _ in range(7):
        start = time.monotonic()
        checkout.run()
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 0.2


def test_real_environment_finds_the_sources_from_any_folder(tmp_path: Path) -> None:
    """A real venv: packages come from beside run.sh, not from where one stands, also after the folder was moved."""
    folder = tmp_path / "check out"
    (folder / "harness").mkdir(parents=True)
    shutil.copy(ROOT / "run.sh", folder)
    (folder / "requirements.lock").write_text("# nothing to install\n")
    report = "import subprocess, sys\nprint(__file__, sys.argv[1:])\n"
    child = "sys.stdout.flush()\nsubprocess.run([sys.executable, '-c', 'import harness; print(harness.__file__)'])\n"
    (folder / "harness" / "__init__.py").touch()
    (folder / "harness" / "__main__.py").write_text(report + child)
    stray = tmp_path / "elsewhere" / "harness"
    stray.mkdir(parents=True)
    (stray / "__init__.py").write_text("raise SystemExit('the wrong harness')")
    env = {**os.environ, "ISORATE_PYTHON": sys.executable}
    env.pop("PYTHONPATH", None)

    def run(at: Path) -> subprocess.CompletedProcess[str]:
        command = [str(at / "run.sh"), *ARGS]
        return subprocess.run(command, cwd=stray.parent, env=env, capture_output=True, text=True, check=False)

    done = run(folder)
    assert done.returncode == 0, done.stderr
    inside = folder / "harness"
    assert done.stdout == f"{inside / '__main__.py'} {ARGS[:]!r}\n{inside / '__init__.py'}\n"
    moved = folder.rename(tmp_path / "moved")
    again = run(moved)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines()[-1] == str(moved / "harness" / "__init__.py")
