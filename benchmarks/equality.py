"""Greedy float32 tokens and logits of the native engine against transformers `generate`, in every configuration.

    .venv/bin/python benchmarks/equality.py --models builtin:gpt2,builtin:smollm2 --prompts 480

The prompts are the first turns of spec_bench that fit. A token may differ only where the reference's two best logits
are closer than the tolerance (then the two continuations are different texts, and the comparison of that prompt ends):
such near ties are counted, everything else is an error. The integration tests run the same code over a few prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from engine_proc.backends.base import EngineRequest  # noqa: E402
from engine_proc.backends.native import NativeBackend  # noqa: E402
from engine_proc.models.hf import as_transformers  # noqa: E402
from engine_proc.models.loader import load_model  # noqa: E402
from engine_proc.tokenize import load_tokenizer  # noqa: E402
from harness.common.protocol import Sampling  # noqa: E402

QUESTIONS = ROOT.parent / "shared" / "data" / "spec_bench" / "question.jsonl"
NEW_TOKENS = 32
TOLERANCE = 1e-4
BLOCK, SMALL_BLOCK = 16, 4


class Setting(NamedTuple):
    """One configuration. `warm`: the prompts go through twice, and the second time counts; `small_pool`: so few blocks
    that sequences are preempted."""

    name: str
    batch: int = 16
    options: Mapping[str, Any] = {}
    warm: bool = False
    small_pool: bool = False


SETTINGS = (
    Setting("paged, batch 16"),
    Setting("batch 1", batch=1),
    Setting("dense twin", options={"paged_attn": False}),
    Setting("no prefix cache", options={"prefix_cache": False}),
    Setting("prefix cache warm", warm=True),
    Setting("chunk 1", options={"prefill_max_tokens": 1}),
    *(Setting(f"chunk {size}", options={"prefill_max_tokens": size}) for size in (BLOCK - 1, BLOCK, BLOCK + 1)),
    Setting("chunk 17, warm, dense twin", options={"prefill_max_tokens": 17, "paged_attn": False}, warm=True),
    Setting("chunk beyond any prompt", options={"prefill_max_tokens": 1 << 20}),
    Setting("decode first, chunk 64", options={"policy": "decode_first", "prefill_max_tokens": 64}),
    Setting("preemption", small_pool=True),
    Setting(
        "preemption, chunk 17, decode first",
        options={"policy": "decode_first", "prefill_max_tokens": 17},
        small_pool=True,
    ),
    Setting("overlap", options={"overlap": True}),
    Setting("overlap, preemption", options={"overlap": True}, small_pool=True),
)


class Reference(NamedTuple):
    """What `generate` gave for one prompt: its tokens, and the logits [NEW_TOKENS, vocab] that chose them."""

    tokens: list[int]
    logits: Tensor


@dataclass
class Found:
    """What comparing some prompts found."""

    prompts: int = 0
    worst: float = 0.0
    compared: int = 0
    near_ties: int = 0
    wrong: list[str] = field(default_factory=list)
    preemptions: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0

    def add(self, other: Found) -> None:
        self.worst = max(self.worst, other.worst)
        for name in ("prompts", "compared", "near_ties", "preemptions", "cached_tokens", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong += other.wrong


def load_prompts(model: str, number: int, max_tokens: int = 900) -> list[list[int]]:
    """The first `number` first turns that fit."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    ids = load_tokenizer(model).encode_batch([json.loads(line)["turns"][0] for line in lines])
    return [prompt for prompt in ids if 0 < len(prompt) <= max_tokens][:number]


def references(module: Any, prompts: Sequence[list[int]], batch: int) -> list[Reference]:
    """Greedy float32 `generate`; prompts of one batch are padded on the left, as transformers wants it."""
    found = []
    for first in range(0, len(prompts), batch):
        part = prompts[first : first + batch]
        width = max(map(len, part))
        out = module.generate(
            torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in part]),
            attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in part]),
            do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        logits = torch.stack(out.logits, dim=1)
        assert logits.shape[:2] == (len(part), NEW_TOKENS)
        found += [Reference(tokens, row) for tokens, row in zip(out.sequences[:, width:].tolist(), logits, strict=True)]
    return found


def compare(expected: Sequence[Reference], tokens: Sequence[list[int]], logits: Sequence[list[Tensor]]) -> Found:
    """Logits at every step up to a divergence; another token counts as a near tie where the best two are that near."""
    found = Found(prompts=len(expected))
    for row, reference in enumerate(expected):
        assert len(tokens[row]) == len(logits[row]) == NEW_TOKENS
        for step in range(NEW_TOKENS):
            found.worst = max(found.worst, (logits[row][step] - reference.logits[step]).abs().max().item())
            found.compared += 1
            if tokens[row][step] != reference.tokens[step]:
                best, second = reference.logits[step].topk(2).values.tolist()
                if best - second < TOLERANCE:
                    found.near_ties += 1
                else:
                    found.wrong.append(f"prompt {row} step {step}: {tokens[row][step]}, not {reference.tokens[step]}")
                break
    return found


def run_setting(model: str, setting: Setting, prompts: Sequence[list[int]], expected: Sequence[Reference]) -> Found:
    """The prompts through a fresh native engine in one configuration."""
    options, block = {"kv_blocks": 16 * 64, **setting.options}, BLOCK
    if setting.small_pool:
        # The longest alone fits, and two others start, but cannot both end: many small blocks, too few for that.
        block = SMALL_BLOCK
        needed = [-(-(len(prompt) + NEW_TOKENS) // block) for prompt in prompts]
        options["kv_blocks"] = max(*needed, 2 * sorted(needed)[len(needed) // 2] - NEW_TOKENS // block + 2)
    logits: dict[int, list[Tensor]] = {}

    def observe(rows: list[int], step: Tensor) -> None:
        for row, values in zip(rows, step, strict=True):
            logits.setdefault(row, []).append(values.clone())

    backend = NativeBackend(model, "cpu", "float32", setting.batch, setting.batch, time.monotonic_ns, block_size=block,
                            logits_observer=observe, **options)  # fmt: skip
    start = time.perf_counter()
    found = Found()
    for first in (0, len(prompts)) if setting.warm else (0,):
        tokens: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompts):
            backend.add(EngineRequest(first + row, prompt, NEW_TOKENS, Sampling(stop_on_eos=False)))
        while backend.has_work():
            output = backend.step()
            found.preemptions += output.preemptions
            found.cached_tokens += sum(cached for _, cached in output.cached_tokens)
            for event in output.tokens:
                tokens.setdefault(event.row, []).append(event.token_id)
    found.seconds = time.perf_counter() - start
    rows = range(first, first + len(prompts))
    found.add(compare(expected, [tokens[row] for row in rows], [logits[row] for row in rows]))
    backend.close()
    return found


def groups(prompts: Sequence[list[int]], size: int) -> Iterator[Sequence[list[int]]]:
    """As many prompts at a time as their reference logits fit into memory; alike long ones together."""
    ordered = sorted(prompts, key=len)
    yield from (ordered[i : i + size] for i in range(0, len(ordered), size))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="builtin:gpt2,builtin:smollm2")
    parser.add_argument("--prompts", type=int, default=480)
    parser.add_argument("--settings", default="", help="only those whose name contains one of these, comma-separated")
    parser.add_argument("--group", type=int, default=80)
    arguments = parser.parse_args()
    wanted = [s for s in SETTINGS if any(part in s.name for part in arguments.settings.split(","))]
    failed = False
    for model in arguments.models.split(","):
        module = as_transformers(load_model(model))
        found = {setting.name: Found() for setting in wanted}
        prompts = load_prompts(model, arguments.prompts)
        for part in groups(prompts, arguments.group):
            start = time.perf_counter()
            with torch.inference_mode():
                expected = references(module, part, 16)
            print(f"{model}: {len(part)} prompts of {len(part[0])}-{len(part[-1])} tokens, reference "
                  f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
            for setting in wanted:
                found[setting.name].add(run_setting(model, setting, part, expected))
        print(f"\n{model}, {len(prompts)} prompts, {NEW_TOKENS} new tokens, float32\n")
        print("| setting | prompts | steps compared | near ties | errors | worst logit difference | preemptions | "
              "cached tokens | s |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|---|")
        for name, f in found.items():
            print(f"| {name} | {f.prompts} | {f.compared} | {f.near_ties} | {len(f.wrong)} | {f.worst:.1e} | "
                  f"{f.preemptions} | {f.cached_tokens} | {f.seconds:.0f} |")  # fmt: skip
            failed |= bool(f.wrong) or f.worst > TOLERANCE
            for line in f.wrong[:5]:
                print(f"  {name}: {line}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
