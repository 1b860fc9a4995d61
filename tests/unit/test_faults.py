"""Each fault flips the checks that are declared for it, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_faults import FAULTS, clean
from made_session import verdict_of

from harness.checks.check import Grade
from harness.checks.registry import CHECK_IDS

#: Checks of what a made session cannot show: the spin is counted by a live pacer (tests/unit/test_checks.py).
ELSEWHERE = {"spin_duty"}


def flipped(folder: Path, base: str, fault: str | None) -> set[str]:
    made = clean(folder, base)
    if fault is not None:
        FAULTS[fault].inject(made)
    return {result.check.id for result in verdict_of(made).results if result.reading.grade >= Grade.WARN}


@pytest.mark.parametrize("base", sorted({fault.base for fault in FAULTS.values()}))
def test_a_clean_session_passes_every_check(tmp_path: Path, base: str) -> None:
    assert flipped(tmp_path, base, None) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_flips_its_checks_and_no_others(tmp_path: Path, fault: str) -> None:
    assert flipped(tmp_path, FAULTS[fault].base, fault) == FAULTS[fault].flips


def test_every_check_is_flipped_by_some_fault() -> None:
    assert frozenset().union(*(fault.flips for fault in FAULTS.values())) == CHECK_IDS - ELSEWHERE
