"""Which flags about prompts and lengths go together: one without an effect is refused, never accepted and ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.common.errors import ConfigError
from harness.config.errors import flag_of
from harness.config.length_text import DRAWN, RECORDED, parse_length

if TYPE_CHECKING:
    from harness.config.run_config import RunConfig

#: Fields that make the published construction.
CONSTRUCTION = ("prompt", "prompt_repeats", "unique_prompts")
#: What --plan decides, beside the fields of the construction.
DECIDED_BY_PLAN = ("input_len", "output_len", "length_seed", "prompt_kind", "prompt_seed", "corpus", "prefix_groups",
                   "prefix_len", "dataset", "dataset_format", "prompt_field", "output_field", "turns",
                   "session_think_ms")  # fmt: skip
#: What means something only with --dataset.
OF_A_DATASET = ("dataset_format", "prompt_field", "output_field", "turns", "session_think_ms")


def kind_of(config: RunConfig) -> str:
    """Where the prompts come from: "repeat", "random", "corpus", "dataset" or "file" (`--prompts`)."""
    if config.prompt_kind is not None:
        return str(config.prompt_kind)
    files = (("dataset", config.dataset), ("corpus", config.corpus), ("file", config.prompts))
    return next((kind for kind, path in files if path is not None), "repeat")


def check_prompt_flags(config: RunConfig) -> None:
    """Raises ConfigError naming the first flag that has no effect beside the others, or that needs another."""
    if config.plan is not None or config.trace is not None:
        return
    for name, why in _refused(config, kind_of(config)):
        raise ConfigError(f"{flag_of(name)} {why}")


def _refused(config: RunConfig, kind: str) -> Iterator[tuple[str, str]]:
    given = {name for name in config.model_fields_set if not _is_unset(getattr(config, name))}
    yield from _sources(given, kind)
    if kind != "repeat":
        for name in CONSTRUCTION:
            if name in given:
                yield name, f"means nothing where the prompts come from {_origin(kind)}"
    if kind in ("random", "corpus") and config.input_len is None:
        yield "prompt_kind", f"{kind} needs --input-len: nothing else says how long the prompts are"
    if config.input_len is not None:
        if kind not in ("repeat", "random", "corpus"):
            yield "input_len", f"means nothing where the prompts come from {_origin(kind)}"
        for name in ("prompt_repeats", "unique_prompts"):
            if name in given:
                yield name, "and --input-len exclude each other: both say how long the prompts are"
    if kind == "random" and config.tokenize_workers:
        yield "tokenize_workers", "does nothing with --prompt-kind random, which sends token ids"
    yield from _datasets(config, given, kind)
    yield from _prefixes(config, given, kind)
    yield from _seeds(config, given, kind)


def _is_unset(value: object) -> bool:
    return value is None or value is False


def _sources(given: set[str], kind: str) -> Iterator[tuple[str, str]]:
    """Each file belongs to its kind, and the kind to its file."""
    for name, of_kind in (("dataset", "dataset"), ("corpus", "corpus"), ("prompts", "file")):
        if name in given and kind != of_kind:
            yield name, f"means nothing where the prompts come from {_origin(kind)}"
    if kind in ("corpus", "dataset") and kind not in given:
        yield "prompt_kind", f"{kind} needs --{kind} FILE"


def outputs_recorded(config: RunConfig) -> bool:
    """Whether each output is as long as the one that the dataset recorded."""
    return config.output_field is not None or config.output_len == RECORDED


def _datasets(config: RunConfig, given: set[str], kind: str) -> Iterator[tuple[str, str]]:
    for name in OF_A_DATASET:
        if name in given and kind != "dataset":
            yield name, "needs --dataset"
    if config.output_len == RECORDED and kind != "dataset":
        yield "output_len", f"{RECORDED} needs --dataset"
    if config.input_len == RECORDED:
        yield "input_len", f"cannot be {RECORDED}: the prompts of a dataset are as long as they are"
    if config.output_field is not None:
        for name in ("output_len", "max_new_tokens"):
            if name in given and config.output_len != RECORDED:
                yield "output_field", f"and {flag_of(name)} exclude each other: both set the tokens to generate"
    if config.turns == 1:
        if "session_think_ms" in given:
            yield "session_think_ms", "needs --turns above 1: a session of one turn has nothing to think about"
    elif config.schedule == "relative":
        yield "turns", "above 1 and --schedule relative exclude each other: a later turn waits for the end of one"


def _prefixes(config: RunConfig, given: set[str], kind: str) -> Iterator[tuple[str, str]]:
    for name in ("prefix_groups", "prefix_len"):
        if name in given and kind not in ("random", "corpus"):
            yield name, "needs --prompt-kind random or corpus"
    if "prefix_groups" in given and config.prefix_len is None:
        yield "prefix_groups", "needs --prefix-len: it says how long the shared prefix is"


def _seeds(config: RunConfig, given: set[str], kind: str) -> Iterator[tuple[str, str]]:
    if "prompt_seed" in given and kind not in ("random", "corpus"):
        yield "prompt_seed", f"means nothing where the prompts come from {_origin(kind)}: nothing is drawn"
    specs = [parse_length(text) for text in (config.input_len, config.output_len) if text is not None]
    if "length_seed" in given and not any(spec.kind in DRAWN for spec in specs):
        yield "length_seed", "needs an --input-len or --output-len that is drawn"


def _origin(kind: str) -> str:
    return {"repeat": "--prompt (--prompt-kind repeat)", "file": "--prompts", "random": "--prompt-kind random"}.get(
        kind, f"--{kind}"
    )
