"""Where files live, and what a start does about those of a harness that died: saved, removed, or left alone."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from made_session import make_session

from harness.common.collector import RUN_T0_CELL, Collector, CollectorShape, read_header
from harness.common.errors import ConfigError
from harness.common.processes import start_ticks
from harness.report.session_info import SESSION_FILE
from harness.session.workspace import (
    COLLECTOR_FILE,
    PLAN_FILE,
    Workspace,
    drop_owner,
    new_run_id,
    open_workspace,
    sweep_dead,
)

ME = (os.getpid(), start_ticks(os.getpid()))
#: Our own pid with another start time: a process that is gone and whose number was given out again.
DEAD = (os.getpid(), start_ticks(os.getpid()) + 1)


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for collectors, and a temp folder of this test's own."""
    for name in ("shm", "tmp", "results"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "shm"


@pytest.fixture
def results(shm: Path) -> Path:
    return shm.parent / "results"


def opened(results: Path, shm: Path) -> Workspace:
    return open_workspace(results / "r", shm)


def collector_of(
    shm: Path, results: Path, owner: tuple[int, int], *, started: bool = True, meta: dict[str, Any] | None = None
) -> Path:
    """A session's collector and staging folder, without a plan."""
    staging = results / ".r.1.partial"
    staging.mkdir(exist_ok=True)
    (staging / "owner").write_text(f"{owner[0]} {owner[1]}\n")
    if meta is None:
        meta = {"run_id": "1", "staging": str(staging), "final": str(results / "r"), "runs": []}
    collector = Collector.create(shm / "isorate-1.collector", CollectorShape(4, 4, 4), meta, owner)
    collector.control[RUN_T0_CELL] = int(started)
    collector.submitter[2, 0] = 77
    collector.close()
    return collector.path


def whole_session(shm: Path, results: Path) -> Path:
    """A dead session with everything that a report needs; returns the collector's path."""
    made = make_session(results.parent, n=4)
    staging = results / ".r.1.partial"
    staging.mkdir()
    made.plan.save(staging / PLAN_FILE)
    made.info.save(staging / SESSION_FILE)
    meta = {**made.collector.meta, "run_id": made.info.run_id, "staging": str(staging), "final": str(results / "r")}
    path = made.collector.path
    made.collector.close()
    raw, text = bytearray(path.read_bytes()), json.dumps(meta).encode()
    raw[112:120], raw[120 : 120 + len(text)] = struct.pack("<q", len(text)), text
    path.unlink()
    (shm / "isorate-1.collector").write_bytes(raw)
    return shm / "isorate-1.collector"


def test_folders_are_made_and_belong_to_this_process(shm: Path, results: Path) -> None:
    workspace = opened(results, shm)
    assert workspace.staging.is_dir() and workspace.staging.parent == results
    assert stat.S_IMODE(workspace.sockets.stat().st_mode) == 0o700
    for folder in (workspace.staging, workspace.sockets):
        assert (folder / "owner").read_text().split() == [str(word) for word in ME]
    assert workspace.collector.parent == shm and not workspace.collector.exists()
    assert workspace.final == results / "r" and not workspace.final.exists()


def test_the_finished_folder_has_no_owner(shm: Path, results: Path) -> None:
    workspace = opened(results, shm)
    drop_owner(workspace.staging)
    drop_owner(workspace.staging)
    assert list(workspace.staging.iterdir()) == []


def test_nothing_stays_of_a_session_that_measured_nothing(shm: Path, results: Path) -> None:
    workspace = open_workspace(results / "deep" / "er" / "r", shm)
    workspace.collector.write_bytes(b"x")
    workspace.remove_all()
    assert list(results.iterdir()) == list(shm.iterdir()) == []
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


@pytest.mark.parametrize("name", ["file", "full"])
def test_an_out_that_holds_something_is_refused(shm: Path, results: Path, name: str) -> None:
    (results / "file").write_text("precious")
    (results / "full").mkdir()
    (results / "full" / "x").write_text("precious")
    with pytest.raises(ConfigError, match=f"--out .*{name}"):
        open_workspace(results / name, shm)
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_an_empty_out_is_taken(shm: Path, results: Path) -> None:
    (results / "r").mkdir()
    assert opened(results, shm).final == results / "r"


def test_an_out_below_a_file_is_refused_and_leaves_nothing(shm: Path, results: Path) -> None:
    (results / "file").write_text("precious")
    with pytest.raises(ConfigError, match="cannot make the result folder"):
        open_workspace(results / "file" / "r", shm)
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_a_collector_folder_that_is_none_is_refused(shm: Path, results: Path) -> None:
    with pytest.raises(ConfigError, match="--collector-dir"):
        open_workspace(results / "r", shm / "nowhere")
    assert list(results.iterdir()) == []


def test_a_temp_folder_too_deep_for_sockets_is_refused_and_leaves_nothing(
    shm: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = shm / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="too long for an ipc socket"):
        opened(results, shm)
    assert list(results.iterdir()) == list(deep.iterdir()) == []


def test_run_ids_differ_and_sort_by_time() -> None:
    ids = [new_run_id() for _ in range(50)]
    assert len(set(ids)) == 50
    stamps = [name.partition("-")[0] for name in ids]
    assert stamps == sorted(stamps)


def test_a_dead_run_is_recovered_into_its_result_folder(shm: Path, results: Path) -> None:
    path = whole_session(shm, results)
    lines = sweep_dead(shm, results)
    assert lines == [f"recovered the dead run made-by-hand: {results / 'r'}"]
    assert json.loads((results / "r" / "summary.json").read_text())["run_id"] == "made-by-hand"
    assert (results / "r" / COLLECTOR_FILE).exists() and not path.exists()
    assert [folder.name for folder in results.iterdir()] == ["r"]


def test_a_dead_run_that_cannot_be_reported_is_still_saved(shm: Path, results: Path) -> None:
    path = collector_of(shm, results, DEAD)
    (line,) = sweep_dead(shm, results)
    assert "could not be rebuilt" in line and str(results / "r") in line
    saved = Collector.attach(results / "r" / COLLECTOR_FILE)
    assert saved.submitter[2, 0] == 77
    assert not path.exists() and not (results / "r" / "owner").exists()


@pytest.mark.parametrize("junk", [b"", b"junk", b"[]", b"{}", b'{"run_id": 7, "config": []}'])
def test_a_description_that_was_cut_off_does_not_stop_the_next_run(shm: Path, results: Path, junk: bytes) -> None:
    whole_session(shm, results)
    (results / ".r.1.partial" / SESSION_FILE).write_bytes(junk)
    (line,) = sweep_dead(shm, results)
    assert str(results / "r") in line
    assert (results / "r" / COLLECTOR_FILE).exists()


def test_a_dead_run_never_replaces_a_result(shm: Path, results: Path) -> None:
    collector_of(shm, results, DEAD)
    (results / "r").mkdir()
    (results / "r" / "summary.json").write_text('{"run_id": "another"}')
    (line,) = sweep_dead(shm, results)
    assert (results / "r" / "summary.json").read_text() == '{"run_id": "another"}'
    assert line.startswith(f"saved the collector of a dead run in {results / '.r.1.partial'}")
    assert (results / ".r.1.partial" / COLLECTOR_FILE).exists()
    sweep_dead(shm, results)
    assert (results / ".r.1.partial" / COLLECTOR_FILE).exists(), "nor does a later start remove it"


def test_a_dead_run_goes_into_the_empty_folder_that_it_was_given(shm: Path, results: Path) -> None:
    whole_session(shm, results)
    (results / "r").mkdir()
    assert sweep_dead(shm, results) == [f"recovered the dead run made-by-hand: {results / 'r'}"]
    assert (results / "r" / "summary.json").exists()


def test_a_collector_that_was_saved_is_kept_when_the_saving_start_died_too(shm: Path, results: Path) -> None:
    workspace = opened(results, shm)
    (workspace.staging / "owner").write_text(f"{DEAD[0]} {DEAD[1]}\n")
    (workspace.staging / COLLECTOR_FILE).write_bytes(b"measured")
    sweep_dead(shm, results)
    assert (workspace.staging / COLLECTOR_FILE).read_bytes() == b"measured"


def test_a_run_that_died_after_its_report_needs_no_saving(shm: Path, results: Path) -> None:
    path = collector_of(shm, results, DEAD)
    (results / "r").mkdir()
    (results / "r" / "summary.json").write_text('{"run_id": "1"}')
    assert sweep_dead(shm, results) == []
    assert not path.exists()


def test_a_dead_session_in_which_nothing_began_is_removed(shm: Path, results: Path) -> None:
    path = collector_of(shm, results, DEAD, started=False)
    assert sweep_dead(shm, results) == []
    assert not path.exists() and list(results.iterdir()) == []


def test_a_living_session_is_left_alone(shm: Path, results: Path) -> None:
    path = collector_of(shm, results, ME)
    workspace = open_workspace(results / "other", shm)
    before = path.read_bytes()
    assert sweep_dead(shm, results) == []
    assert path.read_bytes() == before
    assert read_header(path).owner_pid == os.getpid()
    assert workspace.staging.is_dir() and workspace.sockets.is_dir() and (results / ".r.1.partial").is_dir()


@pytest.mark.parametrize("content", [b"", b"junk", b"ISORATE\0" + b"\xff" * 5000])
@pytest.mark.parametrize("age_s", [0, 1_000])
def test_a_file_that_is_no_collector_is_left_alone(shm: Path, results: Path, content: bytes, age_s: int) -> None:
    """A young one may be a collector in the making, so nothing is said of it."""
    path = shm / "isorate-x.collector"
    path.write_bytes(content)
    os.utime(path, (path.stat().st_atime - age_s, path.stat().st_mtime - age_s))
    lines = sweep_dead(shm, results)
    assert len(lines) == (1 if age_s else 0)
    assert path.read_bytes() == content


@pytest.mark.parametrize("meta", [{}, {"staging": None}, {"staging": 7, "final": [], "run_id": {}}])
def test_a_collector_of_somebody_else_s_making_is_left_alone(shm: Path, results: Path, meta: dict[str, Any]) -> None:
    path = collector_of(shm, results, DEAD, meta=meta)
    (line,) = sweep_dead(shm, results)
    assert str(path) in line and path.exists()


def test_one_bad_collector_does_not_keep_the_next_from_being_saved(shm: Path, results: Path) -> None:
    collector_of(shm, results, DEAD, meta={}).rename(shm / "isorate-0.collector")
    collector_of(shm, results, DEAD)
    assert len(sweep_dead(shm, results)) == 2
    assert (results / "r" / COLLECTOR_FILE).exists()


def test_other_files_in_the_collector_folder_are_left_alone(shm: Path, results: Path) -> None:
    names = ["isorate-1", "other.collector", "isorate-1.collector.bak"]
    for name in names:
        (shm / name).write_bytes(b"x")
    assert sweep_dead(shm, results) == []
    assert sorted(path.name for path in shm.iterdir()) == sorted(names)


def test_socket_folders_and_staging_folders_of_the_dead_are_removed(shm: Path, results: Path) -> None:
    workspace = opened(results, shm)
    for folder in (workspace.sockets, workspace.staging):
        (folder / "owner").write_text(f"{DEAD[0]} {DEAD[1]}\n")
        (folder / "something").write_text("x")
    assert sweep_dead(shm, results) == []
    assert not workspace.sockets.exists() and not workspace.staging.exists()


@pytest.mark.parametrize("owner", [None, "", "junk", "1", "1 2 3"])
def test_folders_without_a_readable_owner_are_left_alone(shm: Path, results: Path, owner: str | None) -> None:
    folders = [Path(tempfile.gettempdir()) / "isorate-foreign", results / ".foreign.partial"]
    for folder in folders:
        folder.mkdir()
        if owner is not None:
            (folder / "owner").write_text(owner)
    assert sweep_dead(shm, results) == []
    assert all(folder.is_dir() for folder in folders)


def test_folders_that_do_not_exist_have_nothing_to_sweep(shm: Path, results: Path) -> None:
    assert sweep_dead(shm / "nowhere", results / "nowhere") == []


def test_a_collector_folder_that_refuses_to_remove_does_not_hide_the_first_fault(
    results: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only folder does so even of a file that could never be made there."""
    made = opened(results, shm)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    made.remove_all()
    assert list(results.iterdir()) == [] and not made.staging.exists()
