"""What `explain` reads of a folder: the same of requests.csv and requests.parquet, and one line where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_session import MadeSession
from unit.test_requests_parquet import session

from harness.common.errors import ConfigError
from harness.common.stamps import STAMPS
from harness.explain import tables
from harness.explain.tables import COUNTS, read_folder
from harness.measures.records import read_session
from harness.report import finish
from harness.report.finish import finish_session

FORMS = {"csv": 10**6, "parquet": 0}


def folder(path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> MadeSession:
    """A session of three runs of eight requests, reported into `path`."""
    monkeypatch.setattr(finish, "MAX_CSV_ROWS", FORMS[form])
    made = session(path / "made")
    path.joinpath("out").mkdir()
    finish_session(made.collector, made.plan, made.info, path / "out", path / "out")
    return made


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [3, 8, 1000])
def test_both_forms_give_each_run_its_requests(
    form: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_CHUNK", chunk)
    tmp_path.joinpath("made").mkdir()
    made = folder(tmp_path, form, monkeypatch)
    for record in read_session(made.collector, made.plan).runs:
        found = read_folder(tmp_path / "out", record.index).requests
        assert found.rows == 8 and set(found.columns) == {*STAMPS, *COUNTS}
        assert all(found.columns[name].tolist() == record.columns[name].tolist() for name in found.columns)
        assert list(found.error) == [record.error_text(i) for i in range(8)]
        rejected = [i for i, status in enumerate(found.status) if status == "rejected"]
        assert rejected == {0: [3], 1: [2], 2: []}[record.index]
        assert len({id(word) for word in found.status}) == len(set(found.status))  # no string a row


def _cut_row(out: Path) -> None:
    lines = (out / "requests.csv").read_text().splitlines()
    (out / "requests.csv").write_text("\n".join([*lines[:2], lines[2].rsplit(",", 2)[0], *lines[3:]]))


def _no_status(out: Path) -> None:
    (out / "requests.csv").write_text((out / "requests.csv").read_text().replace("status", "state", 1))


def _huge_number(out: Path) -> None:
    lines = (out / "requests.csv").read_text().splitlines()
    (out / "requests.csv").write_text("\n".join([*lines[:2], f"{lines[2].rsplit(',', 1)[0]},{2**70}", *lines[3:]]))


def _null_status(out: Path) -> None:
    table = pq.read_table(out / "requests.parquet")
    words = pa.array([None] * len(table), type=pa.string())
    pq.write_table(table.set_column(table.column_names.index("status"), "status", words), out / "requests.parquet")


def _no_parquet(out: Path) -> None:
    (out / "requests.parquet").write_bytes(b"PAR1 and nothing else")


@pytest.mark.parametrize(
    ("form", "damage"),
    [
        ("csv", _cut_row),
        ("csv", _no_status),
        ("csv", _huge_number),
        ("parquet", _null_status),
        ("parquet", _no_parquet),
    ],
)
def test_requests_that_cannot_be_read_are_one_line(
    form: str, damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("made").mkdir()
    folder(tmp_path, form, monkeypatch)
    damage(tmp_path / "out")
    with pytest.raises(ConfigError, match="requests cannot be read"):
        read_folder(tmp_path / "out", 0)
