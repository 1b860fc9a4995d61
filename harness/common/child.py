"""The first and the last thing that both children do: guard themselves, say HELLO, say DEAD with a reason."""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable

from harness.common import control as words
from harness.common.control import ControlChannel, ControlMessage, PeerGoneError
from harness.common.errors import ConfigError
from harness.common.processes import die_with_parent, ignore_interrupt, name_thread, pin_self


def run_child(program: str, serve: Callable[[ControlChannel, ControlMessage], None]) -> int:
    """Guard this process, take CONFIGURE from the harness and serve it; returns the exit code.

    Everything heavy is imported inside `serve`, after the guards and the core mask are set.
    """
    parser = argparse.ArgumentParser(prog=program, description="started by the harness; not for use by hand")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent_pid)
    ignore_interrupt()
    channel = ControlChannel(socket.socket(fileno=arguments.control_fd))
    threading.Thread(target=_end_with_peer, args=(channel.fileno(),), name="death-pipe", daemon=True).start()
    try:
        channel.send(words.HELLO, pid=os.getpid(), python=sys.version.split()[0])
        message = channel.expect(words.CONFIGURE, timeout_s=60)
        pin_self(message.body["cores"])
        serve(channel, message)
        return 0
    except PeerGoneError:
        return 1  # the harness is gone; the kernel is about to end us as well
    except BaseException as error:
        return _say_dead(channel, error)


def _end_with_peer(fd: int) -> None:
    """Second line behind the kernel's death signal: end this process when the harness's end of the channel closes."""
    name_thread("death-pipe")
    poller = select.poll()
    poller.register(fd, select.POLLHUP | select.POLLRDHUP)
    poller.poll()
    os._exit(1)


def _say_dead(channel: ControlChannel, error: BaseException) -> int:
    traceback.print_exc()
    usage = isinstance(error, ConfigError)
    reason = str(error) if usage else f"{type(error).__name__}: {error}"
    try:
        channel.send(words.DEAD, reason=reason, usage=usage)
    except PeerGoneError:
        pass
    return 1
