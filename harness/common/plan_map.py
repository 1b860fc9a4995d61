"""A saved plan as views of its file: whoever maps it holds no copy, and all processes share the page cache's one."""

from __future__ import annotations

import mmap
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan

_LOCAL_HEADER_BYTES = 30
_NAME_AND_EXTRA = struct.Struct("<HH")  # their lengths, at byte 26 of a zip member's local header


def map_plan(path: Path) -> LoadPlan:
    """The plan in `path` as `LoadPlan.save` wrote it (its members are stored, not compressed); arrays are read-only.

    The file was checked by the process that wrote it and is not checked again. Its pages are mapped before this
    returns: a page fault in the timed loop would be counted as the engine's. The views keep the mapping alive; numbers
    may stand at addresses that are no multiple of their size. Raises ConfigError where it is no such file.
    """
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            mapping = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
            arrays = {item.filename.removesuffix(".npy"): _view(file, mapping, item) for item in archive.infolist()}
        return LoadPlan(**arrays)
    except (OSError, ValueError, TypeError, struct.error, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot map the plan: {reason}") from error


def _view(file: Any, mapping: mmap.mmap, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"array {member.filename!r} is compressed")
    name, extra = _NAME_AND_EXTRA.unpack_from(mapping, member.header_offset + 26)
    file.seek(member.header_offset + _LOCAL_HEADER_BYTES + name + extra)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"array {member.filename!r} is of version {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if len(shape) != 1 or dtype.hasobject:
        raise ValueError(f"array {member.filename!r} is not one row of numbers")
    return np.frombuffer(mapping, dtype=dtype, count=shape[0], offset=file.tell())
