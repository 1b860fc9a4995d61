"""The client that gives up: who is aborted, when, and when it looks again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zmq
from fakes import make_collector

from harness.common.protocol import AbortFrame, unpack_request
from harness.common.stamps import SendResult, Status
from harness.session.aborter import IDLE_NS, Aborter

PATIENCE = 1_000
T0 = 50_000
FIRST = 2  # row of request 0


class FakeSocket:
    def __init__(self) -> None:
        self.sent: list[int] = []
        self.full = False

    def send(self, frame: bytes, flags: int) -> None:
        assert flags == zmq.DONTWAIT
        if self.full:
            raise zmq.Again
        message = unpack_request(frame, 8)
        assert isinstance(message, AbortFrame)
        self.sent.append(message.row)


class Client:
    """An aborter in a run of three requests, one every 100 ns, that are sent 10 ns late."""

    def __init__(self, folder: Path) -> None:
        self.collector = make_collector(folder)
        self.socket = FakeSocket()
        self.aborter = Aborter(self.socket, self.collector, PATIENCE)  # type: ignore[arg-type]
        self.aborter.begin(FIRST, np.arange(3, dtype=np.int64) * 100, T0)

    def send(self, request: int, result: SendResult = SendResult.SENT) -> None:
        self.collector.column("t_send")[FIRST + request] = T0 + 100 * request + 10
        self.collector.column("send_result")[FIRST + request] = result

    def finish(self, request: int) -> None:
        self.collector.column("receiver_status")[FIRST + request] = Status.COMPLETED


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_a_request_is_given_up_when_it_has_been_out_for_so_long(client: Client) -> None:
    client.send(0)
    assert client.aborter.act(T0 + 10 + PATIENCE - 1) == 1
    assert client.socket.sent == []
    client.aborter.act(T0 + 10 + PATIENCE)
    assert client.socket.sent == [FIRST]
    assert client.collector.word("aborts_sent") == 1


def test_a_request_is_given_up_once(client: Client) -> None:
    client.send(0)
    for later in (PATIENCE + 10, PATIENCE + 11, 10 * PATIENCE):
        client.aborter.act(T0 + later)
    assert client.socket.sent == [FIRST]


def test_a_finished_request_is_left_alone(client: Client) -> None:
    client.send(0)
    client.send(1)
    client.finish(0)
    client.aborter.act(T0 + 10 * PATIENCE)
    assert client.socket.sent == [FIRST + 1]


@pytest.mark.parametrize("result", [SendResult.REFUSED, SendResult.ERROR])
def test_a_request_that_did_not_leave_is_left_alone(client: Client, result: SendResult) -> None:
    client.send(0, result)
    client.send(1)
    client.aborter.act(T0 + 10 * PATIENCE)
    assert client.socket.sent == [FIRST + 1]


def test_one_that_was_not_sent_is_not_looked_at_before_it_can_be_due(client: Client) -> None:
    assert client.aborter.act(T0 - 5_000) == 5_000 + PATIENCE
    assert client.aborter.act(T0 + 7_000) == PATIENCE, "sent this very moment, it would be due then"


def test_everything_that_is_due_goes_at_once(client: Client) -> None:
    for request in range(3):
        client.send(request)
    assert client.aborter.act(T0 + 10 * PATIENCE) == IDLE_NS
    assert client.socket.sent == [FIRST, FIRST + 1, FIRST + 2]


def test_an_engine_that_is_gone_is_not_waited_for(client: Client) -> None:
    client.socket.full = True
    client.send(0)
    client.aborter.act(T0 + 10 * PATIENCE)
    assert client.collector.word("aborts_sent") == 0


def test_rows_of_the_run_before_are_not_looked_at_again(client: Client) -> None:
    client.send(0)
    client.aborter.begin(5, np.zeros(1, dtype=np.int64), T0 + 10**6)
    client.aborter.act(T0 + 10 * PATIENCE)
    assert client.socket.sent == []


@pytest.fixture
def reacting(client: Client) -> Client:
    """The same where requests wait for the ends of others: they leave in any order."""
    client.aborter.begin(FIRST, np.zeros(3, dtype=np.int64), T0, in_order=False)
    return client


def test_one_that_waits_for_another_s_end_does_not_hide_those_behind_it(reacting: Client) -> None:
    reacting.send(0)
    reacting.send(2)
    reacting.aborter.act(T0 + 210 + PATIENCE)
    assert reacting.socket.sent == [FIRST, FIRST + 2]
    reacting.send(1)
    reacting.aborter.act(T0 + 10 * PATIENCE)
    assert reacting.socket.sent == [FIRST, FIRST + 2, FIRST + 1], "each is given up once"


def test_of_those_in_any_order_the_next_to_be_due_says_when_to_look_again(reacting: Client) -> None:
    reacting.send(2)
    assert reacting.aborter.act(T0 + 300) == 210 + PATIENCE - 300
    reacting.finish(2)
    assert reacting.aborter.act(T0 + 400) == PATIENCE, "one sent this very moment would be due then"
