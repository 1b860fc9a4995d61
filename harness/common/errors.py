"""The one exception tree of isorate. The CLI maps it to exit codes; nothing else does."""

from __future__ import annotations


class IsorateError(Exception):
    """Base of every error that isorate raises on purpose."""


class ConfigError(IsorateError):
    """Bad usage or input: named in one line, exit code 2, nothing was started."""


class RunError(IsorateError):
    """The run failed after it began; what was measured is kept. Exit code 1."""


class ChildDiedError(RunError):
    """A child process ended, or said DEAD, before it was told to stop."""


class BackendError(RunError):
    """An engine backend spoke of a request or a token that cannot be; its figures would be somebody else's."""


class ProtocolError(RunError):
    """A control message that does not fit the schema, or came out of turn."""


class ClockError(RunError):
    """Two processes do not read one monotonic clock."""


class CollectorError(RunError):
    """The shared collector is missing, of another version, or damaged."""


class StampError(RunError):
    """A row's stamps are out of order, or its parts do not sum to TTFT."""


class FrameError(IsorateError):
    """A data frame that cannot be decoded; counted by the reader, never fatal."""
