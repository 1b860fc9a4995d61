"""What only the engine's side knows of a model, asked of a short-lived process: token ids of texts, and its limits.

The harness holds no tokenizer; `engine_proc.tokenize` and `engine_proc.limits` need neither a device nor
torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.common.errors import ConfigError, RunError
from harness.plan.draft import Int32Array, Vocabulary

TIMEOUT_S = 600.0
#: Stands for the context of an engine of the user's own, which only says it once it runs.
NO_LIMIT = 2**31 - 1

#: Runs `python -m MODULE ARGS...` with a standard input, returns its standard output. Raises ConfigError, RunError.
Helper = Callable[[str, Sequence[str], str], str]


class Limits(NamedTuple):
    """max_model_len: most tokens of a request (prompt + new), None where only the running engine says it.

    vocab_size: ids 0..vocab_size-1 are known to the model and its tokenizer; special_ids: those with a meaning of their
    own, ascending.
    """

    max_model_len: int | None
    vocab_size: int
    special_ids: tuple[int, ...]

    @property
    def vocabulary(self) -> Vocabulary:
        """As plans use it; a context that is not known sets no limit."""
        return Vocabulary(self.vocab_size, self.special_ids, self.max_model_len or NO_LIMIT)


def run_helper(module: str, args: Sequence[str], text: str) -> str:
    """The real helper process, with this package's checkout on its path.

    Raises ConfigError with its one line where it blames the input (exit code 2), RunError where it fails otherwise.
    """
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    try:
        done = subprocess.run([sys.executable, "-m", module, *args], input=text, capture_output=True, encoding="utf-8",
                              errors="backslashreplace", timeout=TIMEOUT_S, env=env, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError(f"{module} gave no answer within {TIMEOUT_S:.0f} s") from None
    lines = done.stderr.strip().splitlines() or ["no word of why"]
    if done.returncode == 2:
        raise ConfigError(lines[-1].removeprefix("error: "))
    if done.returncode:
        raise RunError(f"{module} failed (exit code {done.returncode}): {lines[-1]}")
    return done.stdout


def ask_limits(engine: str, model: str, helper: Helper = run_helper) -> Limits:
    """The limits of an engine with a model. Raises ConfigError for a model that cannot be read."""
    answer = json.loads(helper("engine_proc.limits", ["--engine", engine, "--model", model], ""))
    return Limits(answer["max_model_len"], answer["vocab_size"], tuple(answer["special_ids"]))


def ask_tokens(model: str, texts: Sequence[str], helper: Helper = run_helper) -> list[Int32Array]:
    """Token ids of each text; equal texts are tokenized once. Raises ConfigError for a model that cannot be read."""
    distinct = list(dict.fromkeys(texts))
    rows = _ask_lines(["--model", model], distinct, helper)
    by_text = {text: np.array(row, dtype=np.int32) for text, row in zip(distinct, rows, strict=True)}
    return [by_text[text] for text in texts]


class HelperTokenizer:
    """A `TokenizerLink` without an engine process: the same tokenizer in a helper process a call."""

    def __init__(self, engine: str, model: str, helper: Helper = run_helper) -> None:
        self._engine = engine
        self._model = model
        self._helper = helper
        self._vocabulary: Vocabulary | None = None

    def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
        """Token ids of each text, int32."""
        return ask_tokens(self._model, texts, self._helper) if texts else []

    def detokenize(self, rows: Sequence[Int32Array]) -> list[str]:
        """The text of each row of ids."""
        asked = [row.tolist() for row in rows]
        return [str(text) for text in _ask_lines(["--model", self._model, "--decode"], asked, self._helper)]

    def vocabulary(self) -> Vocabulary:
        """What the engine will take; asked for once."""
        if self._vocabulary is None:
            self._vocabulary = ask_limits(self._engine, self._model, self._helper).vocabulary
        return self._vocabulary


def _ask_lines(args: Sequence[str], items: Sequence[object], helper: Helper) -> list[Any]:
    """One JSON line an item to the tokenizer's process, one back. Raises RunError where an answer is missing."""
    lines = "".join(json.dumps(item) + "\n" for item in items)
    answers = [json.loads(line) for line in helper("engine_proc.tokenize", args, lines).splitlines()]
    if len(answers) != len(items):
        raise RunError(f"engine_proc.tokenize answered {len(answers)} of {len(items)} lines")
    return answers
