"""What benchmarks/equality.py and the integration tests compare: prompts, the truth, settings, distances.

The truth is transformers' own greedy `generate` in float64 on the same float32 weights. A float32 `generate` is
measured against it like the engine is: how far float32 alone takes one from the truth.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from engine_proc.backends.base import EngineBackend, EngineRequest
from engine_proc.backends.native import NativeBackend
from engine_proc.backends.native_parts import Kernels
from engine_proc.models.loader import LoadedModel
from engine_proc.tokenize import load_tokenizer
from harness.common.protocol import Sampling
from harness.common.specs import EngineOptions

QUESTIONS = Path(__file__).resolve().parents[2] / "shared" / "data" / "spec_bench" / "question.jsonl"
NEW_TOKENS = 32
#: Most that a logit may differ; a token may differ only where the truth's best two are closer than that.
TOLERANCE = 1e-4
#: Most tokens of a prompt "that fits": GPT-2's 1024 positions less what is put out.
FITS = 1024 - NEW_TOKENS
#: Where float32 products alone lead beyond TOLERANCE: how much larger the packed products' root mean square may be than
#: that of transformers in float32. (oneDNN adds up a row of K products in one go, MKL in pieces: about 1.7 on SmolLM2.)
RATIO = 2.5
BLOCK, SMALL_BLOCK = 16, 4

Engine = Literal["native", "transformers"]
#: The linear layers: oneDNN's float32 products, as one gets them; `ExactLinear`; that and the hidden state in float64.
Products = Literal["packed", "exact", "exact, wide stream"]
Observer = Callable[[list[int], Tensor], None]


class Setting(NamedTuple):
    """One configuration. `warm`: the prompts go through twice, and the second time counts; `small_pool`: so few blocks
    that sequences are preempted."""

    name: str
    batch: int = 16
    options: Mapping[str, Any] = {}
    warm: bool = False
    small_pool: bool = False
    engine: Engine = "native"


def _chunk(size: int, name: str = "", **more: Any) -> Setting:
    options = {"prefill_max_tokens": size, **more.pop("options", {})}
    return Setting(name or f"chunk {size}", options=options, **more)


SERVED = Setting("paged, prefix cache, batch 16")
TRANSFORMERS = Setting("engine transformers", engine="transformers")
#: Each choice at least once: paged on and off; prefix cache on, off and warm; chunks of 1 token, a block less one, a
#: block, one more, and beyond any prompt; batch 1 and 16; preemption; both engines.
EACH_CHOICE = (
    SERVED,
    _chunk(BLOCK + 1, "dense twin, no prefix cache, chunk 17", options={"paged_attn": False, "prefix_cache": False}),
    _chunk(BLOCK, "prefix cache warm, chunk 16", warm=True),
    _chunk(BLOCK - 1, "preemption, chunk 15", small_pool=True),
    _chunk(1 << 20, "batch 1, chunk beyond any prompt", batch=1),
    TRANSFORMERS,
    _chunk(1),
)
#: Choices that only meet each other.
COMBINED = (
    _chunk(17, "chunk 17, warm, dense twin", options={"paged_attn": False}, warm=True),
    _chunk(64, "decode first, chunk 64", options={"policy": "decode_first"}),
    _chunk(17, "preemption, chunk 17, decode first", options={"policy": "decode_first"}, small_pool=True),
    Setting("overlap", options={"overlap": True}),
    Setting("overlap, preemption", options={"overlap": True}, small_pool=True),
)
#: One choice at a time.
SINGLE = (
    Setting("preemption", small_pool=True),
    Setting("prefix cache warm", warm=True),
    Setting("dense twin", options={"paged_attn": False}),
    Setting("no prefix cache", options={"prefix_cache": False}),
    Setting("batch 1", batch=1),
    *map(_chunk, (BLOCK - 1, BLOCK, BLOCK + 1)),
)


class Reference(NamedTuple):
    """What `generate` gave for one prompt: its tokens, and the logits [NEW_TOKENS, vocab] that chose them."""

    tokens: list[int]
    logits: Tensor


@dataclass
class Found:
    """What comparing some prompts found. `squares`: of all logits' differences, `values` of them."""

    prompts: int = 0
    worst: float = 0.0
    compared: int = 0
    near_ties: int = 0
    wrong: list[str] = field(default_factory=list)
    preemptions: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    squares: float = 0.0
    values: int = 0

    @property
    def rms(self) -> float:
        """Root mean square of the logits' differences."""
        return math.sqrt(self.squares / self.values) if self.values else 0.0

    def add(self, other: Found) -> None:
        self.worst = max(self.worst, other.worst)
        sums = ("prompts", "compared", "near_ties", "preemptions", "cached_tokens", "seconds", "squares", "values")
        for name in sums:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong += other.wrong


def load_prompts(model: str, number: int, max_tokens: int = FITS) -> list[list[int]]:
    """The first `number` first turns that fit."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    ids = load_tokenizer(model).encode_batch([json.loads(line)["turns"][0] for line in lines])
    return [prompt for prompt in ids if 0 < len(prompt) <= max_tokens][:number]


@torch.inference_mode()
def references(module: Any, prompts: Sequence[list[int]], batch: int = 16) -> list[Reference]:
    """Greedy `generate`; prompts of one batch are alike in length and padded on the left, as transformers wants it."""
    found: dict[int, Reference] = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for part in (order[first : first + batch] for first in range(0, len(order), batch)):
        width = len(prompts[part[-1]])
        padding = [width - len(prompts[i]) for i in part]
        out = module.generate(
            torch.tensor([[0] * pad + prompts[i] for i, pad in zip(part, padding, strict=True)]),
            attention_mask=torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding]),
            do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        assert len(out.logits) == NEW_TOKENS
        for row, i in enumerate(part):  # by row: generate hands out float32, whatever it computes in
            found[i] = Reference(out.sequences[row, width:].tolist(), torch.stack([step[row] for step in out.logits]))
    return [found[i] for i in range(len(prompts))]


def compare(expected: Sequence[Reference], tokens: Sequence[list[int]], logits: Sequence[Sequence[Tensor]]) -> Found:
    """Logits at every step up to a divergence; another token counts as a near tie where the best two are that near."""
    found = Found(prompts=len(expected))
    for row, reference in enumerate(expected):
        assert len(tokens[row]) == len(logits[row]) == NEW_TOKENS
        for step in range(NEW_TOKENS):
            difference = logits[row][step].double() - reference.logits[step]
            assert difference.isfinite().all()
            found.worst = max(found.worst, difference.abs().max().item())
            found.squares += difference.square().sum().item()
            found.values += difference.numel()
            found.compared += 1
            if tokens[row][step] != reference.tokens[step]:
                best, second = reference.logits[step].topk(2).values.tolist()
                if best - second < TOLERANCE:
                    found.near_ties += 1
                else:
                    found.wrong.append(f"prompt {row} step {step}: {tokens[row][step]}, not {reference.tokens[step]}")
                break
    return found


def compare_references(expected: Sequence[Reference], other: Sequence[Reference]) -> Found:
    return compare(expected, [r.tokens for r in other], [list(r.logits) for r in other])


def small_pool_blocks(prompts: Sequence[list[int]]) -> int:
    """So many small blocks that the longest alone fits, and two others start, but cannot both end."""
    needed = sorted(-(-(len(prompt) + NEW_TOKENS) // SMALL_BLOCK) for prompt in prompts)
    return max(needed[-1], 2 * needed[len(needed) // 2] - NEW_TOKENS // SMALL_BLOCK + 2)


def make_backend(model: str | LoadedModel, setting: Setting, prompts: Sequence[list[int]], products: Products,
                 observe: Observer) -> EngineBackend:  # fmt: skip
    """A fresh engine in one configuration, in float32 on the CPU; `observe` gets the logits of each step."""
    if setting.engine == "transformers":
        from benchmarks.equality_transformers import ObservedTransformers

        name = model if isinstance(model, str) else model.name
        return ObservedTransformers(name, setting.batch, EngineOptions(kv_blocks=16 * 64, **setting.options), observe)
    room = sum(-(-(len(prompt) + NEW_TOKENS) // BLOCK) for prompt in prompts)  # what is warm must still be there
    options: dict[str, Any] = {"kv_blocks": max(16 * 64, room + 1), "block_size": BLOCK, **setting.options}
    if setting.small_pool:
        options |= {"kv_blocks": small_pool_blocks(prompts), "block_size": SMALL_BLOCK}
    kernels = Kernels(exact_linear=products != "packed", wide_stream=products == "exact, wide stream")
    return NativeBackend(model, "cpu", "float32", setting.batch, setting.batch, time.monotonic_ns, kernels=kernels,
                         logits_observer=observe, **options)  # fmt: skip


def run_setting(model: str | LoadedModel, setting: Setting, prompts: Sequence[list[int]], expected: Sequence[Reference],
                products: Products = "packed") -> Found:  # fmt: skip
    """The prompts through a fresh engine in one configuration, and what they look like beside `expected`."""
    logits: dict[int, list[Tensor]] = {}

    def observe(rows: list[int], step: Tensor) -> None:
        for row, values in zip(rows, step, strict=True):
            logits.setdefault(row, []).append(values.clone())

    backend = make_backend(model, setting, prompts, products, observe)
    start = time.perf_counter()
    found = Found()
    for first in (0, len(prompts)) if setting.warm else (0,):
        logits.clear()
        tokens: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompts):
            backend.add(EngineRequest(first + row, prompt, NEW_TOKENS, Sampling(stop_on_eos=False)))
        while backend.has_work():
            output = backend.step()
            assert not output.failed, output.failed
            found.preemptions += output.preemptions
            found.cached_tokens += sum(cached for _, cached in output.cached_tokens)
            for event in output.tokens:
                tokens.setdefault(event.row, []).append(event.token_id)
    found.seconds = time.perf_counter() - start
    rows = range(first, first + len(prompts))
    found.add(compare(expected, [tokens[row] for row in rows], [logits[row] for row in rows]))
    backend.close()
    return found


def is_within(found: Found, held_to_tolerance: bool, float32: Found) -> bool:
    """Whether tokens and logits are as they must be. `float32`: transformers' own on the same prompts."""
    within = found.worst <= TOLERANCE if held_to_tolerance else found.rms <= RATIO * float32.rms
    return not found.wrong and within
