"""Which flags go with `--trace`. No flag is accepted and ignored: one without an effect is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.common.errors import ConfigError
from harness.config.errors import flag_of

if TYPE_CHECKING:
    from harness.config.run_config import RunConfig

#: Settings that say how a trace is read or fitted.
TRACE_ONLY = (
    "trace_format", "trace_unit", "trace_window", "trace_speed", "trace_limit", "trace_empty", "trace_block_size",
    "trace_multiplier", "trace_labels", "sort", "lengths", "max_model_len",
)  # fmt: skip


def check_trace_flags(config: RunConfig) -> None:
    """Raises ConfigError naming the first flag that does nothing with, or without, a trace."""
    fields = type(config).model_fields
    for name in TRACE_ONLY:
        if config.trace is None and getattr(config, name) != fields[name].default:
            raise ConfigError(f"{flag_of(name)} does nothing without --trace")
    if config.trace is not None and config.tokenize_workers:
        raise ConfigError("--tokenize-workers does nothing with --trace: its prompts are sent as token ids")
