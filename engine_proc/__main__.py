"""`python -m engine_proc`: the process that owns the model and the device."""

from __future__ import annotations

import sys

from harness.common.child import run_child
from harness.common.control import ControlChannel, ControlMessage


def serve(channel: ControlChannel, configure: ControlMessage) -> None:
    """Import after the core mask is set, so that library threads inherit it."""
    from engine_proc.server import EngineServer
    from harness.common.specs import EngineSpec

    EngineServer(channel, EngineSpec.from_body(configure.body)).serve()


if __name__ == "__main__":
    sys.exit(run_child("engine_proc", serve))
