"""Reading a summary.json back. Imports nothing heavy before a file is there to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.common.errors import ConfigError


def read_summary(path: Path) -> dict[str, Any]:
    """The parsed summary.json. Raises ConfigError naming the file where it is none, or of another version."""
    from harness.report.summary import SCHEMA

    try:
        summary = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not JSON, or cut short") from None
    schema = summary.get("schema") if isinstance(summary, dict) else None
    if schema != SCHEMA:
        raise ConfigError(f"{path}: its schema is {schema!r}, this isorate reads {SCHEMA!r}")
    return dict(summary)
