"""The shared collector: one tmpfs file of int64 cells that every process maps, one writer per cell, no lock.

Layout: a header page region (magic, version, sizes, owner, JSON description), control pages of counters (one 64-byte
line a writer), then one page-aligned block a writer: submitter rows, engine rows, receiver rows, step table, token log,
and the probes' rings (`harness.common.probes.ring`).
Readers look after the run, or at counters while it goes on.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.common.errors import CollectorError, ConfigError
from harness.common.limits import MAX_SUBMITTERS
from harness.common.stamps import ENGINE_COLUMNS, RECEIVER_COLUMNS, STEP_COLUMNS, SUBMITTER_COLUMNS

MAGIC = b"ISORATE\0"
VERSION = 3
_PAGE = 4096
_HEADER_BYTES = 64 * 1024
_CONTROL_BYTES = 2 * _PAGE
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)
_LINE = 8  # int64 cells in a 64-byte cache line

Int64Array = npt.NDArray[np.int64]

#: Control words: name -> cell in the control page. Each writer's words start a cache line of their own.
CONTROL_WORDS: dict[str, int] = {
    # owned by: harness
    "stop": 0,
    "end_reason": 1,
    "current_run": 2,
    "receiver_stop": 3,  # set once the engine has ended: what it sent last is still taken
    "aborts_sent": 4,
    "probes_rest": 5,  # not 0: the probes do nothing for now; set by who compares (benchmarks/observer_effect.py)
    # owned by: submitter (of several: the first; each has a line like it, see `submitter_line`)
    "sent": 8,
    "refused": 9,
    "send_errors": 10,
    "spin_ns": 11,
    "submitter_done_runs": 12,
    "yield_ns": 13,  # in which the pacer let libzmq's I/O thread run
    # owned by: engine ingress thread
    "ingress": 16,
    "bad_frames": 17,
    "duplicates": 18,
    "ingress_beat_ns": 19,
    "aborts": 20,  # abort messages taken
    # owned by: engine step loop
    "steps": 24,
    "steps_lost": 25,
    "tokens": 26,
    "tokens_lost": 27,
    "terminal": 28,
    "egress_messages": 29,
    "step_beat_ns": 30,
    "longest_step_ns": 31,
    # owned by: engine wire thread
    "wire_messages": 32,
    "wire_ring_waits": 33,
    "wire_bad_frames": 34,
    "wire_errno": 35,
    # owned by: receiver (harness)
    "results": 40,
    "delivered": 41,
    "finished": 42,
    "result_bad_frames": 43,
    "complaints": 44,
    "repeated_results": 45,
    # owned by: receiver wire thread
    "receiver_messages": 48,
    "receiver_ring_waits": 49,
    "receiver_bad_frames": 50,
    "receiver_errno": 51,
    # owned by: engine step loop, its second line
    "late_aborts": 56,  # of rows that had ended, or were not in the engine
    "late_tokens": 57,  # of rows that had ended, by a stop or an abort; dropped
    "late_captures": 58,  # CUDA graphs captured after warm-up
}


#: The t0 of run k (ns, 0: never started) stands in control cell RUN_T0_CELL + k; owned by: harness.
RUN_T0_CELL = 64
MAX_RUNS = 440
SUBMITTER_WORDS = ("sent", "refused", "send_errors", "spin_ns", "submitter_done_runs", "yield_ns")
_SECOND_SUBMITTER_CELL = 512  # the second control page: a line a further submitter


def submitter_line(shard: int) -> int:
    """How many cells after those in CONTROL_WORDS submitter `shard` (0, 1, ...) has its words: a cache line each."""
    return 0 if shard == 0 else _SECOND_SUBMITTER_CELL - CONTROL_WORDS["sent"] + (shard - 1) * _LINE


class CollectorShape(NamedTuple):
    """How much the collector holds: request rows over all runs, engine steps, output tokens; rows of the rings."""

    rows: int
    steps: int
    tokens: int
    gil: int = 0
    pauses: int = 0
    hiccups: int = 0
    threads: int = 0
    cpus: int = 0


#: Magic, version, bytes, the shape, then pid, start time and uid of the owner, and the length of the description.
_HEADER = struct.Struct(f"<8sqq{len(CollectorShape._fields)}qqqqq")
#: Rings of the probes by name, and the field of CollectorShape that says how many rows each has. One writer a ring.
RINGS = {
    "gil": "gil",  # owned by: the engine's GIL probe
    "gc_engine": "pauses",  # owned by: the engine's gc callback, which runs with the GIL
    "gc_submitter": "pauses",  # owned by: the submitter's gc callback
    "hiccups": "hiccups",  # owned by: the harness's hiccup monitor
    "threads": "threads",  # owned by: the harness's main thread
    "cpus": "cpus",  # owned by: the harness's main thread
}
RING_CELLS = _LINE  # a row is a cache line; row 0 of a ring is its head, whose first cell counts the rows written


class _Block(NamedTuple):
    offset: int
    rows: int
    cells: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.cells * 8


def _padded(columns: tuple[str, ...]) -> int:
    return -(-len(columns) // _LINE) * _LINE


def _page_up(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _blocks(shape: CollectorShape) -> tuple[dict[str, _Block], int]:
    offset = _HEADER_BYTES + _CONTROL_BYTES
    blocks = {}
    sizes = {
        "submitter": (shape.rows, _padded(SUBMITTER_COLUMNS)),
        "engine": (shape.rows, _padded(ENGINE_COLUMNS)),
        "receiver": (shape.rows, _padded(RECEIVER_COLUMNS)),
        "steps": (shape.steps, _padded(STEP_COLUMNS)),
        "tokens": (shape.tokens, 1),
    }
    sizes.update({ring: (getattr(shape, field) + 1, RING_CELLS) for ring, field in RINGS.items()})
    for name, (rows, cells) in sizes.items():
        blocks[name] = _Block(offset, rows, cells)
        offset += _page_up(max(rows * cells * 8, 8))
    return blocks, offset


def collector_bytes(shape: CollectorShape) -> int:
    """Bytes of the file that holds `shape`."""
    return _blocks(shape)[1]


class Collector:
    """A mapped collector file. Make one with `create` (the harness) or `attach` (children, readers).

    Arrays are int64 views of the mapping: `submitter`, `engine`, `receiver` of shape (rows, padded columns), `steps`
    of shape (steps, padded columns), `tokens` of shape (tokens,) holding `row << 32 | token id`, `control` (cells),
    `rings` by name, of shape (1 + rows, 8).
    Drop every view before `close`, else the mapping stays until they are gone.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, shape: CollectorShape, meta: dict[str, Any]) -> None:
        self.path = path
        self.shape = shape
        self.meta = meta
        self.submitters = _submitters(path, meta)
        self._mapping = mapping
        blocks, _ = _blocks(shape)
        self.control = self._view(_Block(_HEADER_BYTES, 1, _CONTROL_BYTES // 8)).reshape(-1)
        self.submitter = self._view(blocks["submitter"])
        self.engine = self._view(blocks["engine"])
        self.receiver = self._view(blocks["receiver"])
        self.steps = self._view(blocks["steps"])
        self.tokens = self._view(blocks["tokens"]).reshape(-1)
        self.rings = {ring: self._view(blocks[ring]) for ring in RINGS}

    def _view(self, block: _Block) -> Int64Array:
        flat = np.frombuffer(self._mapping, dtype=np.int64, count=block.rows * block.cells, offset=block.offset)
        return flat.reshape(block.rows, block.cells)

    @classmethod
    def create(cls, path: Path, shape: CollectorShape, meta: dict[str, Any], owner: tuple[int, int]) -> Collector:
        """Make, reserve and prefault the file; `owner` is (pid, start time in clock ticks) of the harness.

        Raises ConfigError where there is no room or no permission, naming the bytes needed.
        """
        nbytes = collector_bytes(shape)
        text = json.dumps(meta).encode()
        if len(text) > _HEADER_BYTES - _HEADER.size:
            raise ConfigError(f"collector description of {len(text)} bytes exceeds {_HEADER_BYTES - _HEADER.size}")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot create the collector {path}: {error.strerror}") from error
        try:
            os.posix_fallocate(fd, 0, nbytes)
            head = _HEADER.pack(MAGIC, VERSION, nbytes, *shape, *owner, os.getuid(), len(text))
            os.pwrite(fd, head + text, 0)
            mapping = mmap.mmap(fd, nbytes)
        except (OSError, OverflowError, struct.error) as error:  # the last two: more bytes than an int64 holds
            os.unlink(path)
            if not isinstance(error, OSError) or error.errno in _NO_ROOM:
                raise ConfigError(f"no room for the collector: {nbytes} bytes are needed in {path.parent}") from error
            raise ConfigError(f"cannot reserve {nbytes} bytes for {path}: {error.strerror}") from error
        finally:
            os.close(fd)
        _prefault(mapping)
        return cls(path, mapping, shape, meta)

    @classmethod
    def attach(cls, path: Path, *, writable: bool = True) -> Collector:
        """Map an existing file. Raises CollectorError where it is no collector, of another version, or cut short."""
        header = read_header(path)
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            access = mmap.ACCESS_DEFAULT if writable else mmap.ACCESS_READ
            mapping = mmap.mmap(fd, header.nbytes, access=access)
        finally:
            os.close(fd)
        if writable:
            _prefault(mapping)
        return cls(path, mapping, header.shape, header.meta)

    def word(self, name: str) -> int:
        """Read one control word; a submitter's word is the sum over all submitters."""
        if self.submitters > 1 and name in SUBMITTER_WORDS:
            return sum(self.submitter_word(name, shard) for shard in range(self.submitters))
        return int(self.control[CONTROL_WORDS[name]])

    def submitter_word(self, name: str, shard: int) -> int:
        """Read one word of one submitter."""
        return int(self.control[CONTROL_WORDS[name] + submitter_line(shard)])

    def set_word(self, name: str, value: int) -> None:
        """Write one control word; only its owner may (see CONTROL_WORDS)."""
        self.control[CONTROL_WORDS[name]] = value

    def column(self, name: str) -> Int64Array:
        """The column of all rows by name, as a strided view."""
        for columns, block in (
            (SUBMITTER_COLUMNS, self.submitter),
            (ENGINE_COLUMNS, self.engine),
            (RECEIVER_COLUMNS, self.receiver),
        ):
            if name in columns:
                return block[:, columns.index(name)]
        raise KeyError(name)

    def close(self) -> None:
        """Drop the views and the mapping. Views that a caller still holds keep the memory, not the file."""
        for name in ("control", "submitter", "engine", "receiver", "steps", "tokens"):
            setattr(self, name, np.empty(0, dtype=np.int64))
        self.rings = {}
        try:
            self._mapping.close()
        except BufferError:  # a caller's view outlives us; the mapping goes with it
            pass


def _submitters(path: Path, meta: dict[str, Any]) -> int:
    """How many submitters write into it, by its description. Raises CollectorError."""
    count = meta.get("submitters", 1)
    if type(count) is not int or not 1 <= count <= MAX_SUBMITTERS:
        raise CollectorError(f"{path} has a damaged description: {count!r} submitters")
    return count


class Header(NamedTuple):
    """What a collector file says of itself."""

    nbytes: int
    shape: CollectorShape
    owner_pid: int
    owner_start: int
    uid: int
    meta: dict[str, Any]


def read_header(path: Path) -> Header:
    """Read a collector's header without mapping it. Raises CollectorError where it is not a whole collector."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_HEADER_BYTES)
        size = os.stat(path).st_size
    except OSError as error:
        raise CollectorError(f"cannot read the collector {path}: {error.strerror}") from error
    if len(raw) < _HEADER.size or raw[:8] != MAGIC:
        raise CollectorError(f"{path} is not an isorate collector")
    _, version, nbytes, *numbers = _HEADER.unpack_from(raw)
    if version != VERSION:
        raise CollectorError(f"{path} is a collector of version {version}, this isorate reads {VERSION}")
    shape, (pid, start, uid, length) = CollectorShape._make(numbers[:-4]), numbers[-4:]
    if min(shape) < 0 or nbytes != collector_bytes(shape) or size < nbytes:
        raise CollectorError(f"{path} is cut short or damaged: {size} of {nbytes} bytes")
    try:
        meta = json.loads(raw[_HEADER.size : _HEADER.size + length])
    except ValueError as error:
        raise CollectorError(f"{path} has a damaged description") from error
    if not isinstance(meta, dict):
        raise CollectorError(f"{path} has a damaged description")
    return Header(nbytes, shape, pid, start, uid, meta)


def _prefault(mapping: mmap.mmap) -> None:
    """Map every page now: a page fault in the timed loop costs as much as the lag it measures."""
    madv_populate_write = 23  # Linux 5.14; the kernel maps without us touching (and so without racing) any cell
    try:
        mapping.madvise(madv_populate_write)
    except (OSError, ValueError):
        for offset in range(0, len(mapping), _PAGE):
            _ = mapping[offset]
