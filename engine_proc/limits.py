"""How long a request an engine takes and which token ids: read from the model's files, without weights or a device.

`python -m engine_proc.limits --engine native --model builtin:gpt2` prints one JSON object with the fields of
`Limits`. No torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from engine_proc.backends.null import MAX_MODEL_LEN
from engine_proc.models.gguf_file import open_gguf
from engine_proc.models.source import GPT2_POSITIONS, POSITION_KEYS, find_model
from engine_proc.tokenize import TOKENIZER_FILES, load_tokenizer, read_json
from harness.common.errors import ConfigError


class Limits(NamedTuple):
    """max_model_len: most tokens of a request, None for an engine of the user's own, which only says it once it runs.

    vocab_size: the tokenizer's, or the model's where that is smaller. special_ids: as the engine's DESCRIBED has them.
    """

    max_model_len: int | None
    vocab_size: int
    special_ids: list[int]


def read_limits(engine: str, model: str) -> Limits:
    """The limits that the engine will have. Raises ConfigError, one line."""
    tokenizer = load_tokenizer(model)
    size, special = tokenizer.vocab_size, sorted(tokenizer.special_ids())
    if engine == "null":
        return Limits(MAX_MODEL_LEN, size, special)
    if ":" in engine:
        return Limits(None, size, special)
    positions, rows = _of_model(model)
    return Limits(positions, min(size, rows or size), special)


def _of_model(model: str) -> tuple[int, int | None]:
    """Positions, and the embedding's rows where the files say so."""
    source = find_model(model, TOKENIZER_FILES)
    if source.builtin:
        return GPT2_POSITIONS, None
    if source.gguf is not None:
        fields = open_gguf(source.gguf).fields
        kind = fields["general.architecture"].contents() if "general.architecture" in fields else ""
        config: dict[str, Any] = {
            name: fields[f"{kind}.{key}"].contents()
            for name, key in ((POSITION_KEYS[0], "context_length"), ("vocab_size", "vocab_size"))
            if f"{kind}.{key}" in fields
        }
    else:
        config = read_json(source.folder / "config.json")
        text = config.get("text_config")
        config = {**config, **(text if isinstance(text, dict) else {})}
    if config.get("model_type") == "gpt2":
        config.setdefault("n_positions", GPT2_POSITIONS)
    positions = next((config[name] for name in POSITION_KEYS if _is_size(config.get(name))), 0)
    if not positions:
        raise ConfigError(f"model {model!r} does not say how many positions it has (--max-model-len N says it)")
    return int(positions), int(config["vocab_size"]) if _is_size(config.get("vocab_size")) else None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def main(argv: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Print the limits. Returns the exit code: 2 for a model that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m engine_proc.limits", description="Print a model's limits.")
    parser.add_argument("--engine", default="native")
    parser.add_argument("--model", default="builtin:gpt2")
    options = parser.parse_args(argv)
    try:
        limits = read_limits(options.engine, options.model)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(limits._asdict()), file=out or sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
