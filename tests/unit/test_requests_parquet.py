"""requests.parquet holds what requests.csv holds, and stands in its place above a million rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_session import MadeSession, make_session

from harness.common.stamps import Reason, Status
from harness.measures.records import read_session
from harness.report import finish, requests_csv, requests_parquet
from harness.report.finish import finish_session
from harness.report.requests_csv import COLUMNS, write_requests_csv
from harness.report.requests_parquet import write_requests_parquet


def session(folder: Path) -> MadeSession:
    made = make_session(folder, n=8, warmups=(True, False, False))
    for row, code, a in ((3, Reason.TOO_LONG, 9), (10, Reason.ID_OUT_OF_VOCAB, 7)):
        made.set("receiver_status", row, Status.REJECTED)
        made.set("error_code", row, code)
        made.set("error_a", row, a)
    return made


@pytest.mark.parametrize("group", [1, 3, 8, 1000])
def test_parquet_and_csv_hold_the_same_cells(tmp_path: Path, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_parquet, "_ROW_GROUP", group)
    made = session(tmp_path)
    runs = read_session(made.collector, made.plan).runs
    write_requests_csv(tmp_path / "r.csv", runs)
    write_requests_parquet(tmp_path / "r.parquet", runs)
    table = pq.read_table(tmp_path / "r.parquet")
    with open(tmp_path / "r.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert table.column_names == list(COLUMNS) and len(rows) == 24
    assert [{name: str(value) for name, value in row.items()} for row in table.to_pylist()] == rows
    assert pq.ParquetFile(tmp_path / "r.parquet").num_row_groups == 3 * -(-8 // group)
    assert len({row["error"] for row in rows}) == 3


@pytest.mark.parametrize(("limit", "written"), [(24, "requests.csv"), (23, "requests.parquet")])
def test_the_table_of_more_rows_than_a_text_file_serves_is_parquet(
    tmp_path: Path, limit: int, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "MAX_CSV_ROWS", limit)
    made = session(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    for stale in ("requests.csv", "requests.parquet"):
        (out / stale).write_text("of an earlier report")
    finish_session(made.collector, made.plan, made.info, out, out)
    assert [path.name for path in out.glob("requests.*")] == [written]


def test_a_million_rows_are_still_csv() -> None:
    assert requests_csv.MAX_CSV_ROWS == 1_000_000


def test_the_report_says_the_memory_of_each_process_by_request(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=8, manifest={"peak_rss_bytes": {"engine": 800, "submitter": None}})
    out = tmp_path / "out"
    out.mkdir()
    memory = finish_session(made.collector, made.plan, made.info, out, out).summary["memory"]
    assert memory["rows"] == 8 and memory["collector"] == made.collector.path.stat().st_size
    assert memory["peak_rss"]["engine"] == 800 and memory["peak_rss_per_request"]["engine"] == 100
    assert memory["peak_rss_per_request"]["submitter"] is None and memory["peak_rss"]["report"] > 0
