"""The floor of a host: stored by the self-test, taken up by sessions on the same host and no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.common.errors import RunError
from harness.host.floor import Floor, HostPrint, floor_path, host_print, read_floor, session_floor, write_floor
from harness.host.reading import HostFiles

HOST = HostPrint("Some CPU @ 2 GHz", 4, "6.1.0")
FLOOR = Floor(HOST, 250_000, 900_000, "2026-11-30T02:00:00+00:00", "0.1.0")


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "floor.json"
    write_floor(path, FLOOR)
    assert read_floor(path, HOST) == FLOOR
    assert [file.name for file in path.parent.iterdir()] == ["floor.json"]


def test_the_file_has_the_documented_keys(tmp_path: Path) -> None:
    write_floor(tmp_path / "floor.json", FLOOR)
    data = json.loads((tmp_path / "floor.json").read_text())
    assert list(data) == ["schema", "host", "floor_p50_ns", "floor_p99_ns", "when", "version"]
    assert data["schema"] == "isorate.floor/1" and data["host"] == {"cpu": HOST.cpu, "cores": 4, "kernel": "6.1.0"}


@pytest.mark.parametrize("change", [{"cpu": "Another"}, {"cores": 2}, {"kernel": "6.2.0"}])
def test_another_host_has_no_floor(tmp_path: Path, change: dict[str, object]) -> None:
    write_floor(tmp_path / "floor.json", FLOOR)
    assert read_floor(tmp_path / "floor.json", replace(HOST, **change)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{"schema": "isorate.floor/2"}, {"floor_p99_ns": "900000"}, {"floor_p50_ns": 0}, {"floor_p50_ns": True},
     {"floor_p99_ns": 100}, {"floor_p99_ns": 10**18}, {"floor_p50_ns": 2.5}, {"host": None}, {"host": {}}],
)  # fmt: skip
def test_a_file_that_is_no_floor_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "floor.json"
    write_floor(path, FLOOR)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert read_floor(path, HOST) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b"[" * 60_000, b"\xff\xfe", b" " * 100_000])
def test_a_damaged_file_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "floor.json").write_bytes(content)
    assert read_floor(tmp_path / "floor.json", HOST) is None


def test_no_file_and_a_folder_in_its_place_are_none(tmp_path: Path) -> None:
    assert read_floor(tmp_path / "absent.json", HOST) is None
    assert read_floor(tmp_path, HOST) is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/floor\.json"):
        write_floor(tmp_path / "file" / "floor.json", FLOOR)


def test_the_cache_folder_is_the_user_s() -> None:
    assert floor_path({"XDG_CACHE_HOME": "/x"}) == Path("/x/isorate/floor.json")
    assert floor_path({"XDG_CACHE_HOME": "relative"}) == floor_path({}) == Path.home() / ".cache/isorate/floor.json"


def test_a_session_takes_up_the_floor_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert session_floor() == {}
    write_floor(floor_path(), replace(FLOOR, host=host_print()))
    assert session_floor() == {
        "ttft_p50_ns": 250_000, "ttft_p99_ns": 900_000, "when": FLOOR.when, "version": FLOOR.version,
    }  # fmt: skip


def test_the_print_names_the_cpu_s_model(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert host_print(HostFiles(tmp_path)).cpu == "Some CPU @ 2 GHz"
