"""`python -m submitter_proc`: the process that keeps the arrival clock."""

from __future__ import annotations

import sys

from harness.common.child import run_child
from harness.common.control import ControlChannel, ControlMessage


def serve(channel: ControlChannel, configure: ControlMessage) -> None:
    """Import after the core mask is set, so that library threads inherit it."""
    from harness.common.specs import SubmitterSpec
    from submitter_proc.submitter import Submitter

    Submitter(channel, SubmitterSpec.from_body(configure.body)).serve()


if __name__ == "__main__":
    sys.exit(run_child("submitter_proc", serve))
