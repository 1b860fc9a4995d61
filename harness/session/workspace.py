"""Where a session's files live, and what becomes of those of a harness that died: nothing measured is ever lost."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.common.collector import Collector, read_header
from harness.common.errors import CollectorError, ConfigError, IsorateError
from harness.common.processes import is_alive, start_ticks
from harness.common.sockets import make_socket_folder

COLLECTOR_FILE = "collector.bin"
PLAN_FILE = "plan.npz"
_OWNER_FILE = "owner"
_PREFIX = "isorate-"
_SUFFIX = ".collector"
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths of one session. `staging` becomes `final` in one rename when the report is whole."""

    run_id: str
    staging: Path
    final: Path
    sockets: Path
    collector: Path
    made: tuple[Path, ...] = ()  # parents of `staging` that this session made, innermost first

    def remove_sockets(self) -> None:
        shutil.rmtree(self.sockets, ignore_errors=True)

    def remove_all(self) -> None:
        """Leave nothing: for a session in which nothing was measured."""
        self.remove_sockets()
        with contextlib.suppress(OSError):  # a read-only folder says so even of a file that is not there
            self.collector.unlink()
        shutil.rmtree(self.staging, ignore_errors=True)
        _remove_empty(self.made)


def _remove_empty(folders: tuple[Path, ...]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # somebody has put something there meanwhile
            folder.rmdir()


def absolute(path: Path) -> Path:
    """Seen from the current folder. Raises ConfigError where that has been deleted."""
    try:
        return path.absolute()
    except FileNotFoundError:
        raise ConfigError(f"{path}: the current folder does not exist any more") from None


def new_run_id() -> str:
    """Sortable by start time, unique on a host."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def open_workspace(out: Path | None, collector_dir: Path) -> Workspace:
    """Make the folders. Raises ConfigError naming the one that cannot be made; then nothing is left behind."""
    run_id = new_run_id()
    final = absolute(Path("results") / run_id if out is None else out.expanduser())
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise ConfigError(f"--out {final}: exists already and is not an empty folder")
    if not collector_dir.is_dir():
        raise ConfigError(f"--collector-dir {collector_dir}: is not a folder")
    staging = final.parent / f".{final.name}.{run_id}{_PARTIAL}"
    made = tuple(parent for parent in staging.parents if not parent.exists())
    try:
        staging.mkdir(parents=True, mode=0o755)
    except OSError as error:
        _remove_empty(made)
        raise ConfigError(f"cannot make the result folder {final}: {error.strerror}") from error
    try:
        sockets = make_socket_folder()
    except ConfigError:
        _remove_empty((staging, *made))
        raise
    for folder in (staging, sockets):
        (folder / _OWNER_FILE).write_text(f"{os.getpid()} {start_ticks(os.getpid())}\n")
    return Workspace(run_id, staging, final, sockets, collector_dir.absolute() / f"{_PREFIX}{run_id}{_SUFFIX}", made)


def drop_owner(staging: Path) -> None:
    """The finished folder needs no owner file."""
    (staging / _OWNER_FILE).unlink(missing_ok=True)


def sweep_dead(collector_dir: Path, results: Path) -> list[str]:
    """Save what sessions of dead harnesses left behind: returns one line a session that was saved or could not be.

    A dead run's collector (pid and start time gone, own uid) is moved into its result folder before anything goes.
    """
    lines = []
    for path in sorted(collector_dir.glob(f"{_PREFIX}*{_SUFFIX}")):
        try:
            line = _save_collector(path)
        except (IsorateError, OSError) as error:
            line = f"left {path} of a dead run alone: {error}"
        except (LookupError, TypeError):
            line = f"left {path} alone: its description is not that of a run"
        if line:
            lines.append(line)
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        if folder.is_dir() and _owner_is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in sorted(results.glob(f".*{_PARTIAL}")):
        if folder.is_dir() and _owner_is_dead(folder) and not (folder / COLLECTOR_FILE).exists():
            shutil.rmtree(folder, ignore_errors=True)
    return lines


def _save_collector(path: Path) -> str:
    from harness.report.recover import recover

    if path.stat().st_uid != os.getuid():
        return ""
    try:
        header = read_header(path)
    except CollectorError as error:
        return "" if _is_young(path) else f"left it alone: {error} (remove it if no other isorate wants it)"
    if header.uid != os.getuid() or is_alive(header.owner_pid, header.owner_start):
        return ""
    staging = Path(header.meta["staging"])
    if not _any_run_started(path) or _is_reported(Path(header.meta["final"]), header.meta["run_id"]):
        path.unlink()
        return ""
    staging.mkdir(parents=True, exist_ok=True)
    target = staging / COLLECTOR_FILE
    shutil.copyfile(path, target.with_suffix(".tmp"))
    target.with_suffix(".tmp").rename(target)
    path.unlink()
    drop_owner(staging)
    final = Path(header.meta["final"])
    try:
        staging.rename(final)  # onto nothing, or onto the empty folder that --out named
    except OSError:
        final = staging
    try:
        recover(final)
    except Exception as error:  # whatever the files of a killed run lead it to: the run that starts now goes on
        return f"saved the collector of a dead run in {final}; its report could not be rebuilt: {error}"
    return f"recovered the dead run {header.meta['run_id']}: {final}"


def _is_reported(final: Path, run_id: str) -> bool:
    """The harness died after its report was whole and before it removed the collector."""
    try:
        return bool(json.loads((final / "summary.json").read_text())["run_id"] == run_id)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_young(path: Path) -> bool:
    """A harness that starts at this moment has made the file but not yet written its header."""
    import time

    return time.time() - path.stat().st_mtime < 60


def _any_run_started(path: Path) -> bool:
    from harness.common.collector import RUN_T0_CELL

    collector = Collector.attach(path, writable=False)
    try:
        return bool(collector.control[RUN_T0_CELL] != 0)
    finally:
        collector.close()


def _owner_is_dead(folder: Path) -> bool:
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        pid, start = (int(word) for word in (folder / _OWNER_FILE).read_text().split())
    except (OSError, ValueError):
        return False
    return not is_alive(pid, start)
