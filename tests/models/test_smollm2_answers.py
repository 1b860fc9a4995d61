"""Real weights answer a real question: nothing in the engine can be far off where this is right."""

from __future__ import annotations

import time

import jinja2
import pytest
from tiny_gpt2 import Driver

from engine_proc.backends.base import EngineRequest
from engine_proc.backends.native import NativeBackend
from engine_proc.models.gguf_file import gguf_chat_template
from engine_proc.models.source import find_model
from engine_proc.tokenize import load_tokenizer
from harness.common.protocol import Sampling
from harness.common.stamps import FinishReason

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_knows_the_capital_of_france(dtype: str) -> None:
    path = find_model("builtin:smollm2", ()).gguf
    assert path is not None
    text = jinja2.Template(gguf_chat_template(path)).render(messages=QUESTION, add_generation_prompt=True)
    tokenizer = load_tokenizer("builtin:smollm2")
    backend = NativeBackend("builtin:smollm2", "cpu", dtype, 2, 2, time.monotonic_ns, tokenizer, kv_blocks=64)
    driver = Driver(backend)
    done = driver.run([EngineRequest(0, tokenizer.encode(text), 32, Sampling())])
    assert "Paris" in tokenizer.decode(done[0])
    assert driver.finish[0] is FinishReason.EOS
