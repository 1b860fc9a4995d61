"""`plan.npz`: the load as arrays, written before t0 and never changed; the same file repeats the same load."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.common.errors import ConfigError
from harness.common.limits import MAX_NEW_TOKENS, MAX_PAYLOAD_BYTES, MAX_REQUESTS, MAX_THINK_NS
from harness.common.utf8 import first_invalid

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BytesArray = npt.NDArray[np.uint8]

_PAYLOAD_MEMBERS = ("texts.npy", "prompt_ids.npy")
_NPY_HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is sent when. N requests; payloads are token ids (`prompt_ids` set) or UTF-8 text (`texts` set).

    offsets_ns: int64[N], non-decreasing ns after t0. max_new_tokens: int32[N]. Payload i is
    `prompt_ids[prompt_starts[i]:prompt_starts[i+1]]` or `texts[text_starts[i]:text_starts[i+1]]`.

    A gated plan has both `after` and `think_ns`. after: int32[N], the row that must have ended before row i is due,
    always < i; -1: row i is due at its own offset. think_ns: int64[N], row i is due so long after the end of its
    predecessor (0 where it has none); the offset of a row with a predecessor only keeps the array sorted.
    """

    offsets_ns: Int64Array
    max_new_tokens: Int32Array
    prompt_ids: Int32Array | None = None
    prompt_starts: Int64Array | None = None
    texts: BytesArray | None = None
    text_starts: Int64Array | None = None
    after: Int32Array | None = None
    think_ns: Int64Array | None = None

    @property
    def num_requests(self) -> int:
        return len(self.offsets_ns)

    @property
    def pretokenized(self) -> bool:
        return self.prompt_ids is not None

    @property
    def gated(self) -> bool:
        """Whether some row waits for another one's end."""
        return self.after is not None and bool((self.after >= 0).any())

    def payload(self, i: int) -> bytes:
        """Payload bytes of request i: little-endian int32 ids, or UTF-8 text."""
        if self.prompt_ids is not None and self.prompt_starts is not None:
            return self.prompt_ids[self.prompt_starts[i] : self.prompt_starts[i + 1]].astype("<i4").tobytes()
        assert self.texts is not None and self.text_starts is not None
        return self.texts[self.text_starts[i] : self.text_starts[i + 1]].tobytes()

    def payload_lengths(self) -> Int64Array:
        """int64[N]: bytes of each payload."""
        if self.prompt_starts is not None:
            return np.diff(self.prompt_starts) * 4
        assert self.text_starts is not None
        return np.diff(self.text_starts)

    def largest_payload_bytes(self) -> int:
        """Bytes of the longest payload."""
        return int(self.payload_lengths().max(initial=0))

    def sha256(self) -> str:
        """Digest over the canonical arrays: name, dtype, length and bytes of each in a fixed order."""
        digest = hashlib.sha256()
        for name, array in self._arrays().items():
            digest.update(f"{name}:{array.dtype.str}:{len(array)};".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        arrays: dict[str, npt.NDArray[np.generic] | None] = {
            "offsets_ns": self.offsets_ns.astype("<i8", copy=False),
            "max_new_tokens": self.max_new_tokens.astype("<i4", copy=False),
            "prompt_ids": None if self.prompt_ids is None else self.prompt_ids.astype("<i4", copy=False),
            "prompt_starts": None if self.prompt_starts is None else self.prompt_starts.astype("<i8", copy=False),
            "texts": self.texts,
            "text_starts": None if self.text_starts is None else self.text_starts.astype("<i8", copy=False),
            "after": None if self.after is None else self.after.astype("<i4", copy=False),
            "think_ns": None if self.think_ns is None else self.think_ns.astype("<i8", copy=False),
        }
        return {name: array for name, array in arrays.items() if array is not None}

    def save(self, path: Path) -> None:
        """Write the arrays. Raises OSError."""
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, **self._arrays())


def load_plan(path: Path) -> LoadPlan:
    """Read and check a plan file. Raises ConfigError naming the file and what is wrong with it."""
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except ConfigError:
        raise
    except Exception as error:  # zipfile, zlib and the header parser raise whatever a damaged file leads them to
        reason = getattr(error, "strerror", None) or f"not a plan file, or damaged ({type(error).__name__})"
        raise ConfigError(f"{path}: cannot read the plan: {reason}") from error
    dtypes = {"offsets_ns": np.int64, "max_new_tokens": np.int32, "prompt_ids": np.int32, "prompt_starts": np.int64,
              "texts": np.uint8, "text_starts": np.int64, "after": np.int32, "think_ns": np.int64}  # fmt: skip
    for name, array in arrays.items():
        if name not in dtypes or not isinstance(array, np.ndarray) or array.dtype != dtypes[name] or array.ndim != 1:
            raise ConfigError(f"{path}: array {name!r} is not what a plan holds")
    if "offsets_ns" not in arrays or "max_new_tokens" not in arrays:
        raise ConfigError(f"{path}: offsets_ns or max_new_tokens is missing")
    plan = LoadPlan(**arrays)
    _check(plan, path)
    return plan


def _check_sizes(path: Path) -> None:
    """Before anything is unpacked: a small file can unpack to more than there is memory, a pipe never ends."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ConfigError(f"{path}: cannot read the plan: not a file")
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            limit = MAX_PAYLOAD_BYTES if member.filename in _PAYLOAD_MEMBERS else 8 * (MAX_REQUESTS + 1)
            if member.file_size > limit + _NPY_HEADER_BYTES:
                raise ConfigError(f"{path}: array {member.filename!r} would take {member.file_size} bytes")


def _check(plan: LoadPlan, path: Path) -> None:
    n = plan.num_requests
    if n == 0:
        raise ConfigError(f"{path}: the plan has no requests")
    if plan.offsets_ns[0] < 0 or np.any(np.diff(plan.offsets_ns) < 0):
        raise ConfigError(f"{path}: offsets_ns is negative or not sorted")
    if len(plan.max_new_tokens) != n:
        raise ConfigError(f"{path}: max_new_tokens has {len(plan.max_new_tokens)} rows, offsets_ns {n}")
    if plan.max_new_tokens.max() > MAX_NEW_TOKENS:
        raise ConfigError(f"{path}: max_new_tokens of a request exceeds {MAX_NEW_TOKENS}")
    pairs = [(plan.prompt_ids, plan.prompt_starts), (plan.texts, plan.text_starts)]
    if [data is not None and starts is not None for data, starts in pairs].count(True) != 1:
        raise ConfigError(f"{path}: a plan holds either prompt_ids with prompt_starts or texts with text_starts")
    for data, starts in pairs:
        if data is None or starts is None:
            continue
        if len(starts) != n + 1 or starts[0] != 0 or starts[-1] != len(data) or np.any(np.diff(starts) < 0):
            raise ConfigError(f"{path}: payload starts do not cover the payloads of {n} requests")
    _check_gates(plan, path)
    _check_utf8(plan, path)


def _check_gates(plan: LoadPlan, path: Path) -> None:
    n, after, think = plan.num_requests, plan.after, plan.think_ns
    if after is None and think is None:
        return
    if after is None or think is None or len(after) != n or len(think) != n:
        raise ConfigError(f"{path}: a gated plan holds both after and think_ns, a cell for each of its {n} requests")
    wrong = np.flatnonzero((after < -1) | (after >= np.arange(n)))
    if len(wrong):
        row = int(wrong[0])
        raise ConfigError(f"{path}: request {row} comes after request {after[row]}, which is not an earlier one")
    wrong = np.flatnonzero((think < 0) | (think > MAX_THINK_NS) | ((after < 0) & (think != 0)))
    if len(wrong):
        row = int(wrong[0])
        why = "which has no predecessor" if after[row] < 0 else f"not from 0 to {MAX_THINK_NS}"
        raise ConfigError(f"{path}: think_ns is {think[row]} at request {row}, {why}")


def _check_utf8(plan: LoadPlan, path: Path) -> None:
    if plan.texts is None:
        return
    assert plan.text_starts is not None
    row = first_invalid(plan.texts, plan.text_starts)
    if row is not None:
        raise ConfigError(f"{path}: the text of request {row} is not valid UTF-8")
