"""Reading the files that loads are made of: bounded, whole, and every fault in one line that names flag and file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harness.common.errors import ConfigError

BOM = b"\xef\xbb\xbf"
#: Most bytes that a file, or all texts of a plan together, may take.
MAX_TEXT_BYTES = 2 * 1024**3


def read_bytes(path: Path, flag: str, limit: int | None = None) -> bytes:
    """The file's bytes, a byte-order mark dropped; `limit`: most of them, MAX_TEXT_BYTES if not given.

    Raises ConfigError naming `flag` and the file for what is missing, unreadable, too large, or no file (or pipe).
    """
    limit = MAX_TEXT_BYTES if limit is None else limit
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
                raise ConfigError(f"{flag} {path}: not a file")
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from None
    if len(data) > limit:
        raise ConfigError(f"{flag} {path}: the file exceeds {limit} bytes")
    return data.removeprefix(BOM)


def decode_lines(data: bytes, where: str) -> list[str]:
    """The lines of UTF-8 text without their ends, LF or CRLF; what follows the last newline is a line where not empty.

    Raises ConfigError, `where` and the line's number first, for what is not UTF-8.
    """
    lines = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        try:
            lines.append(raw.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}, line {number}: not valid UTF-8 (byte {error.start + 1} of the line)") from None
    if lines and not lines[-1]:
        lines.pop()
    return lines
