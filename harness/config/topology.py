"""`--topology`: whether the submitter is a process of its own (`separate`) or a thread of the engine's (`inproc`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from harness.common.errors import ConfigError
from harness.config.errors import flag_of
from harness.host.cores import Placement, default_placement, joined

if TYPE_CHECKING:
    from harness.common.plan_file import LoadPlan
    from harness.config.run_config import RunConfig

Topology = Literal["separate", "inproc"]

_SLEEPS = "whose pacer is time.sleep, as published"
_NO_PROCESS = "which has no submitter process"
_NO_MESSAGES = "where no message carries a request"
_OPEN_LOOP = "whose submitter waits for no end of a request"
#: What cannot be had with one process: the rest of the sentence "--flag means nothing with --topology inproc, ...".
_REFUSED = {
    "pacer": _SLEEPS,
    "wait": _SLEEPS,
    "rt": _SLEEPS,
    "submitter_cores": _NO_PROCESS,
    "submitters": _NO_PROCESS,
    "payload": _NO_MESSAGES,
    "ingress": _NO_MESSAGES,
    "abort_after_ms": _NO_MESSAGES,
    "max_concurrency": _OPEN_LOOP,
    "think_time": _OPEN_LOOP,
}


def check_topology_flags(config: RunConfig) -> None:
    """Raises ConfigError for the first flag that means nothing with `inproc`; given at all is enough."""
    if config.topology == "separate":
        return
    for name, why in _REFUSED.items():
        if name in config.model_fields_set and getattr(config, name) is not None:
            raise ConfigError(f"{flag_of(name)} means nothing with --topology inproc, {why}")


def check_topology_plan(topology: Topology, plan: LoadPlan) -> None:
    """Raises ConfigError for a plan whose requests wait for others, which the published submitter cannot do."""
    if topology == "inproc" and plan.gated:
        raise ConfigError(f"--topology inproc cannot run this plan, {_OPEN_LOOP}")


def check_waiting(config: RunConfig, placement: Placement) -> None:
    """Raises ConfigError for `--wait spin` on a core that others need: it would starve them."""
    if config.wait == "spin" and not all(map(placement.has_own_core, range(placement.submitters))):
        raise ConfigError("--wait spin: the submitter shares its core with the engine or with another submitter; give "
                          "it one of its own (--submitter-cores), or use --wait sleep")  # fmt: skip


def place(config: RunConfig, allowed: Iterable[int]) -> Placement:
    """Where the processes of a run go. Raises ConfigError as `default_placement`."""
    inproc = config.topology == "inproc"
    submitter = config.engine_cores if inproc else config.submitter_cores  # cores asked for are the whole process's
    apart = default_placement(
        allowed, config.engine_cores, submitter, config.harness_cores, submitters=config.submitters
    )  # fmt: skip
    return joined(apart) if inproc else apart
