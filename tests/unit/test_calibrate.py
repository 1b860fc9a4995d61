"""The spin margin follows the measured overshoot of sleeps, within its bounds."""

from __future__ import annotations

import pytest

from harness.common.clock import monotonic_ns
from submitter_proc.calibrate import MAX_MARGIN_NS, MIN_MARGIN_NS, SAFETY, SLEEP_NS, SLEEPS, calibrate
from submitter_proc.submitter import choose_waiting


class OvershootClock:
    """Every sleep is found to end `overshoots[i]` late; none is slept: its deadline has passed when it is looked at."""

    def __init__(self, overshoots: list[int]) -> None:
        self.overshoots = overshoots
        self.readings = 0

    def __call__(self) -> int:
        sleep, phase = divmod(self.readings, 3)
        self.readings += 1
        if phase == 0:
            return 0
        return SLEEP_NS + (self.overshoots[sleep % len(self.overshoots)] if phase == 2 else 0)


@pytest.mark.parametrize(
    ("overshoot_ns", "margin_ns"),
    [
        (0, MIN_MARGIN_NS),
        (MIN_MARGIN_NS // 2, MIN_MARGIN_NS),
        (160_000, int(160_000 * SAFETY)),
        (MAX_MARGIN_NS, MAX_MARGIN_NS),
        (50_000_000, MAX_MARGIN_NS),
    ],
)
def test_margin_is_the_p99_overshoot_with_safety_within_its_bounds(overshoot_ns: int, margin_ns: int) -> None:
    assert calibrate(OvershootClock([overshoot_ns])).margin_ns == margin_ns


def test_a_single_outlier_does_not_buy_a_spin() -> None:
    calibration = calibrate(OvershootClock([160_000] * (SLEEPS - 1) + [90_000_000]))
    assert calibration == (160_000, 160_000, 90_000_000, 240_000)


def test_real_sleeps_are_never_early() -> None:
    calibration = calibrate(monotonic_ns)
    assert 0 <= calibration.p50_ns <= calibration.p99_ns <= calibration.max_ns
    assert MIN_MARGIN_NS <= calibration.margin_ns <= MAX_MARGIN_NS


@pytest.mark.parametrize(
    ("wait", "own_core", "name", "margin_ns"),
    [
        ("auto", True, "hybrid", 240_000),
        ("auto", False, "sleep", 0),
        ("hybrid", False, "hybrid", 240_000),
        ("sleep", True, "sleep", 0),
        ("spin", True, "spin", 50_000_000),
    ],
)
def test_auto_spins_only_on_a_core_of_its_own(wait: str, own_core: bool, name: str, margin_ns: int) -> None:
    calibration = calibrate(OvershootClock([160_000]))
    chosen, waiting = choose_waiting(wait, own_core, relative=True, calibration=calibration)
    assert chosen == name and waiting.relative
    assert waiting.margin_ns == margin_ns
