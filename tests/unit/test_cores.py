"""Cores: taskset lists, and who runs where by default and by request."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.common.errors import ConfigError
from harness.config.run_config import RunConfig
from harness.config.topology import check_waiting
from harness.host import cores
from harness.host.cores import Placement, allowed_cpus, default_placement, format_cpu_list, parse_cpu_list
from helpers import child_env


def alone(cpu: int) -> frozenset[int]:
    """No SMT: each CPU is a physical core of its own."""
    return frozenset({cpu})


def halves(cpu: int) -> frozenset[int]:
    """SMT on 8 CPUs as Linux numbers them: CPU n and n + 4 are one physical core."""
    return frozenset({cpu % 4, cpu % 4 + 4})


def pairs(cpu: int) -> frozenset[int]:
    """SMT as some virtual machines number them: CPUs 2n and 2n + 1 are one physical core."""
    return frozenset({cpu & ~1, cpu | 1})


def place(count: int, **explicit: tuple[int, ...]) -> Placement:
    return default_placement(range(count), **explicit, siblings=alone)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0,2-4", (0, 2, 3, 4)), ("8-12:2", (8, 10, 12)), ("0,2-4,8-12:2", (0, 2, 3, 4, 8, 10, 12)),
     ("3,1,1-2", (1, 2, 3)), ("5-5", (5,)), ("0-7:3", (0, 3, 6))],
)  # fmt: skip
def test_a_taskset_list_is_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    "text",
    ["", ",", "0,", "a", "-1", "1-", "2-1", "0-4:0", "0:2", "0-99999999", "70000", "0x3", "1.5", "\u0663", "0-3:-1"],
)
def test_what_is_no_taskset_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_cpu_list(text)


@pytest.mark.parametrize("text", ["0", "0,2-4", "0-1,3", "1-4,6,8,10"])
def test_a_list_is_written_as_it_is_read(text: str) -> None:
    assert format_cpu_list(parse_cpu_list(text)) == text


def test_one_core_is_shared_by_all_unasked_and_said_so() -> None:
    placement = place(1)
    assert (placement.engine, placement.submitter, placement.harness) == ((0,), (0,), (0,))
    assert not placement.asked_overlap and "INVALID" in placement.note


def test_one_core_named_for_both_is_asked_for() -> None:
    assert place(1, engine=(0,), submitter=(0,)).asked_overlap


@pytest.mark.parametrize(("beside", "harness"), [("engine", (1,)), ("submitter", (0,))])
def test_two_cores_keep_submitter_and_engine_apart(
    beside: str, harness: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "HARNESS_BESIDE", beside)
    placement = place(2)
    assert (placement.submitter, placement.engine, placement.harness) == ((0,), (1,), harness)
    assert placement.shares == (f"{beside}+harness",) and beside in placement.note


def test_three_cores_are_one_each() -> None:
    placement = place(3)
    assert (placement.submitter, placement.harness, placement.engine) == ((0,), (1,), (2,))
    assert placement.shares == ()


@pytest.mark.parametrize("count", [4, 5, 7])
def test_from_four_cores_on_the_engine_gets_the_rest(count: int) -> None:
    placement = place(count)
    assert (placement.submitter, placement.harness) == ((0,), (1,))
    assert placement.engine == tuple(range(2, count))


@pytest.mark.parametrize("count", [8, 64])
def test_from_eight_cores_on_the_submitter_gets_two(count: int) -> None:
    placement = place(count)
    assert (placement.submitter, placement.harness) == ((0, 1), (2,))
    assert placement.engine == tuple(range(3, count))


@pytest.mark.parametrize("siblings", [halves, pairs])
@pytest.mark.parametrize("allowed", [range(8), [0, 1, 4, 5], [2, 3, 6, 7]])
def test_submitter_and_engine_get_different_physical_cores(siblings: cores.Siblings, allowed: list[int]) -> None:
    placement = default_placement(allowed, siblings=siblings)
    physical = {sibling for cpu in placement.submitter for sibling in siblings(cpu)}
    assert physical.isdisjoint(placement.engine)


def test_the_submitter_avoids_the_physical_core_of_an_explicit_engine() -> None:
    assert default_placement([0, 1, 4, 5], engine=(4,), siblings=halves).submitter == (1,)


def test_cpus_need_not_start_at_zero_or_be_adjacent() -> None:
    placement = default_placement({3, 9}, siblings=alone)
    assert (placement.submitter, placement.engine) == ((3,), (9,))


def test_explicit_lists_win() -> None:
    placement = place(4, engine=(0, 1), submitter=(2,), harness=(2, 3))
    assert (placement.engine, placement.submitter, placement.harness) == ((0, 1), (2,), (2, 3))
    assert placement.shares == ("submitter+harness",)


def test_an_overlap_that_both_lists_name_is_asked_for() -> None:
    placement = place(4, engine=(0, 1), submitter=(1,))
    assert placement.asked_overlap and placement.shares == ("engine+submitter",)


@pytest.mark.parametrize("role", ["engine", "submitter", "harness"])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_a_partial_list_never_makes_engine_and_submitter_share(role: str, count: int) -> None:
    for cpu in range(count):
        placement = place(count, **{role: (cpu,)})
        assert getattr(placement, role) == (cpu,)
        assert set(placement.engine).isdisjoint(placement.submitter)
        assert placement.engine and placement.submitter and placement.harness


def test_what_is_not_named_is_placed_on_the_remaining_cores() -> None:
    placement = place(4, engine=(0, 1))
    assert (placement.submitter, placement.harness) == ((2,), (3,))


@pytest.mark.parametrize(("taker", "other"), [("engine", "submitter"), ("submitter", "engine")])
def test_a_list_that_leaves_no_core_for_the_other_is_refused_by_name(taker: str, other: str) -> None:
    with pytest.raises(ConfigError, match=f"--{taker}-cores.*--{other}-cores"):
        place(2, **{taker: (0, 1)})


def test_a_harness_on_every_core_shares_instead_of_crowding_the_others() -> None:
    placement = place(2, harness=(0, 1))
    assert (placement.submitter, placement.engine, placement.harness) == ((0,), (1,), (0, 1))


@pytest.mark.parametrize("role", ["engine", "submitter", "harness"])
def test_a_core_that_is_not_allowed_is_refused_by_flag_and_number(role: str) -> None:
    with pytest.raises(ConfigError, match=rf"--{role}-cores.* 7 .*\(0-3\)"):
        place(4, **{role: (0, 7)})


def test_every_placement_has_a_note_of_one_line() -> None:
    assert all(place(count).note and "\n" not in place(count).note for count in range(1, 10))


def test_an_outer_taskset_is_honoured() -> None:
    cpu = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}}); from harness.host.cores import *; print(*allowed_cpus())"
    done = subprocess.run([sys.executable, "-c", code], env=child_env(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(cpu)]


def test_a_cpu_is_among_its_own_siblings() -> None:
    assert all(cpu in cores.physical_siblings(cpu) for cpu in allowed_cpus())


def test_a_cpu_without_topology_is_a_core_of_its_own() -> None:
    assert cores.physical_siblings(60_000) == {60_000}


@pytest.mark.parametrize(("cpus", "submitters", "refused"), [(1, 1, True), (2, 1, False), (2, 2, True), (3, 2, False)])
def test_a_submitter_that_never_sleeps_needs_a_core_of_its_own(cpus: int, submitters: int, refused: bool) -> None:
    placement = default_placement(range(cpus), siblings=lambda cpu: frozenset({cpu}), submitters=submitters)
    for wait in ("auto", "sleep", "hybrid"):
        check_waiting(RunConfig(wait=wait), placement)
    spins = RunConfig(wait="spin")
    if refused:
        with pytest.raises(ConfigError, match="--wait spin: the submitter shares its core"):
            check_waiting(spins, placement)
    else:
        check_waiting(spins, placement)
