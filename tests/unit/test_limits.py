"""Limits from a file: read, refused by line and key, applied, shown and stored."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from made_session import make_session, verdict_of

from harness.checks.limits import Change, Limits, read_limits
from harness.checks.registry import CHECK_IDS
from harness.common.errors import ConfigError, RunError
from harness.config.run_config import RunConfig
from harness.report.finish import finish_session
from harness.report.session_info import SessionInfo


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "limits.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, text: str | bytes) -> Limits:
    return read_limits(written(folder, text), CHECK_IDS)


def test_a_table_a_check_sets_its_limits(tmp_path: Path) -> None:
    limits = read(tmp_path, '# mine\n[submit_lag]\nwarn = 5\ninvalid = 2.5e4\n\n[steal]\ninvalid = "off"\n')
    assert limits.changes == (Change("submit_lag", 5.0, 25_000.0), Change("steal", None, math.inf))


def test_limits_survive_the_session_s_description(tmp_path: Path) -> None:
    limits = read(tmp_path, '[steal]\nwarn = 0\ninvalid = "off"\n')
    assert limits.to_json()["changed"] == {"steal": {"warn": 0.0, "invalid": "off"}}
    assert Limits.from_json(json.loads(json.dumps(limits.to_json()))) == limits


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n[sumbit_lag]\nwarn = 1\n", "line 2: there is no check 'sumbit_lag', did you mean submit_lag?"),
        ("[zz9]\nwarn = 1\n", "line 1: there is no check 'zz9': there are backlog, "),
        ("[steal]\nwarn = 1\n\nwran = 2\n", "line 4: steal has no 'wran', there are warn and invalid"),
        ("[steal]\nwarn = -1\n", 'line 2: steal.warn must be a number from 0 on or "off", not -1'),
        ("[steal]\nwarn = nan\n", "steal.warn must be"),
        ("[steal]\nwarn = inf\n", "steal.warn must be"),
        ("[steal]\nwarn = true\n", "steal.warn must be"),
        ("[steal]\nwarn = [1]\n", "steal.warn must be"),
        ('[steal]\nwarn = "Off"\n', "steal.warn must be"),
        ("[steal]\n", "line 1: steal sets neither warn nor invalid"),
        ("steal = 3\n", "line 1: steal must be a table"),
        ("[steal]\nwarn = 3\ninvalid = 2\n", "line 1: steal warns above 3, which is INVALID already"),
        ("[steal\n", "not TOML"),
        ("[steal]\nwarn = 1\nwarn = 2\n", "not TOML"),
        (b"\xff\xfe", "not UTF-8"),
        ("x = " + "[" * 100_000, "not TOML"),
        (b"#" * (1 << 21), "larger than 1 MiB"),
    ],
)
def test_what_a_limits_file_may_not_say_is_refused_by_line_and_key(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "limits.toml")) and says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["missing.toml", "."])
def test_a_limits_file_that_cannot_be_read_is_refused_before_anything_starts(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"--limits .*(No such file|Is a directory)"):
        RunConfig(limits=str(tmp_path / path))


def test_a_changed_limit_decides_the_grade(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=20)
    made.collector.set_word("steps_lost", 2)

    def status(*limits: Any) -> str:
        return verdict_of(made, Limits("mine", (Change("records_lost", *limits),))).status

    assert verdict_of(made).status == "SUSPECT"
    assert [status(2.0), status(1.0), status(None, 1.0), status(math.inf)] == ["VALID", "SUSPECT", "INVALID", "VALID"]


def test_a_limit_that_depends_on_the_run_can_be_changed_too(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=20)
    assert verdict_of(made, Limits("mine", (Change("submit_lag", 0.01, 0.02),))).status == "INVALID"


def test_changed_limits_are_in_the_verdict(tmp_path: Path) -> None:
    limits = Limits("mine.toml", (Change("steal", 3.0),))
    verdict = verdict_of(make_session(tmp_path, n=20), limits).to_json()
    assert verdict["limits"] == {"file": "mine.toml", "changed": {"steal": {"warn": 3.0}}}


def test_a_pipe_is_refused_as_it_can_be_read_once_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "limits.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_limits(tmp_path / "limits.toml", CHECK_IDS)


def test_a_session_keeps_its_limits_and_a_recovery_uses_them(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    made = make_session(tmp_path, n=20, limits={"file": "mine", "changed": {"records_lost": {"warn": 5}}})
    made.collector.set_word("steps_lost", 2)
    outcome = finish_session(made.collector, made.plan, made.info, staging, tmp_path / "out")
    assert outcome.verdict == "VALID"
    stored = SessionInfo.load(tmp_path / "out" / "session.json")
    assert Limits.from_json(stored.limits).changes == (Change("records_lost", 5.0),)


@pytest.mark.parametrize(
    "limits", [{"x": 1}, {"file": "", "changed": [1]}, {"file": "", "changed": {"steal": {"x": 1}}}]
)
def test_damaged_limits_of_a_session_are_one_line(tmp_path: Path, limits: dict[str, Any]) -> None:
    made = make_session(tmp_path, n=20, limits=limits)
    with pytest.raises(RunError, match="cannot read the limits"):
        finish_session(made.collector, made.plan, made.info, tmp_path, tmp_path / "out")
