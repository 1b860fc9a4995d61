"""Tokens per second of the native engine beside transformers and vLLM for CPU: same weights, same prompts, same cores.

    .venv/bin/python benchmarks/engine.py --cores 0,1 --vllm-python /path/to/vllm-venv/bin/python

Each engine is a process of its own that loads the model once and then waits; rounds go in turn through all engines, so
that a slow minute of the machine hits all of them. prefill: 32 prompts of 259 tokens, 1 new token each, prompt tokens
per second of the whole call. decode: 16 prompts of 64 tokens, 64 new tokens each, new tokens per second of the whole
call, its prefill included. The median of the rounds counts; a first round warms up and does not.

A measurement can be cut into parts (`--dtypes bfloat16 --rounds 1 --json FILE`, again and again): each adds its rounds
to FILE, and `--table FILE` prints the medians of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("native", "transformers", "transformers-cb", "vllm")
Prompts = list[list[int]]
#: Tokens per second, one value a round, by dtype, engine and load.
Rates = dict[str, dict[str, dict[str, list[float]]]]
#: Runs prompts to their end with so many new tokens each; returns what came out.
Generate = Callable[[Prompts, int], list[list[int]]]


class Load(NamedTuple):
    """A load, and which of its tokens count."""

    name: str
    prompts: int
    prompt_tokens: int
    new_tokens: int
    counted: int


LOADS = (Load("prefill", 32, 259, 1, 32 * 259), Load("decode", 16, 64, 64, 16 * 64))


def make_prompts(load: Load, seed: int, vocab: int) -> Prompts:
    draw = random.Random(seed)
    return [[draw.randrange(vocab) for _ in range(load.prompt_tokens)] for _ in range(load.prompts)]


# ---- engines, each in its own process ------------------------------------------------------------------------------


def native(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    sys.path.insert(0, str(ROOT))
    from engine_proc.backends.base import EngineRequest
    from engine_proc.backends.native import NativeBackend
    from harness.common.protocol import Sampling

    backend = NativeBackend(model, "cpu", dtype, 16, 16, time.monotonic_ns, **options)
    if hasattr(backend, "warm_up"):
        backend.warm_up()

    def generate(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        out: list[list[int]] = [[] for _ in prompts]
        for row, prompt in enumerate(prompts):
            backend.add(EngineRequest(row, prompt, new_tokens, Sampling(stop_on_eos=False)))
        while backend.has_work():
            for event in backend.step().tokens:
                out[event.row].append(event.token_id)
        return out

    return generate


def _transformers(model: str, dtype: str) -> Any:
    sys.path.insert(0, str(ROOT))
    import torch

    from engine_proc.models.hf import as_transformers
    from engine_proc.models.loader import load_model

    return as_transformers(load_model(model), getattr(torch, dtype))


def transformers(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    import torch

    module = _transformers(model, dtype)

    def generate(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        out: list[list[int]] = []
        with torch.inference_mode():
            for first in range(0, len(prompts), 16):
                ids = torch.tensor(prompts[first : first + 16])
                done = module.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None,
                                       max_new_tokens=new_tokens, pad_token_id=0)  # fmt: skip
                out += done[:, ids.shape[1] :].tolist()
        return out

    return generate


def transformers_cb(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    import torch
    from transformers import ContinuousBatchingConfig, GenerationConfig

    module = _transformers(model, dtype)
    module.set_attn_implementation("sdpa")
    batching = ContinuousBatchingConfig(page_size=16, num_blocks=1024, max_batch_tokens=2048, use_cuda_graph=False,
                                        use_async_batching=False)  # fmt: skip

    def generate(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        with torch.inference_mode():
            done = module.generate_batch(inputs=prompts, generation_config=config, continuous_batching_config=batching,
                                         progress_bar=False)  # fmt: skip
        return [list(output.generated_tokens) for output in done.values()]

    return generate


def vllm(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    """In the environment of `--vllm-python`; `model` is a folder."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM, SamplingParams

    llm = LLM(model=model, dtype=dtype, max_num_seqs=16, max_model_len=1024, skip_tokenizer_init=True,
              disable_log_stats=True)  # fmt: skip

    def generate(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        done = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in done]

    return generate


MAKERS = {"native": native, "transformers": transformers, "transformers-cb": transformers_cb, "vllm": vllm}


def work(engine: str, model: str, dtype: str, vocab: int, options: dict[str, Any]) -> None:
    """A worker: one JSON line when ready, then for each line `load seed` one with the seconds it took."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not get between the answers
    generate = MAKERS[engine](model, dtype, options)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        name, seed = line.split()
        load = next(load for load in LOADS if load.name == name)
        prompts = make_prompts(load, int(seed), vocab)
        start = time.perf_counter()
        out = generate(prompts, load.new_tokens)
        seconds = time.perf_counter() - start
        assert [len(ids) for ids in out] == [load.new_tokens] * load.prompts, "not the tokens that were asked for"
        print(json.dumps({"seconds": seconds, "tokens": out}), file=answers, flush=True)


# ---- the parent ----------------------------------------------------------------------------------------------------


class Worker:
    """A process that runs one engine."""

    def __init__(self, engine: str, dtype: str, arguments: argparse.Namespace, folder: str) -> None:
        self.engine = engine
        python = arguments.vllm_python if engine == "vllm" else sys.executable
        model = folder if engine == "vllm" else arguments.model
        command = [python, __file__, "--worker", engine, "--model", model, "--dtype", dtype,
                   "--options", arguments.options if engine == "native" else "{}"]  # fmt: skip
        if arguments.cores:
            command = ["taskset", "-c", arguments.cores, *command]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT
        )

    def wait_until_ready(self) -> None:
        """Until it has loaded the model; the others load theirs meanwhile."""
        self._read()

    def run(self, load: Load, seed: int) -> tuple[float, list[list[int]]]:
        assert self._process.stdin is not None
        print(load.name, seed, file=self._process.stdin, flush=True)
        answer = self._read()
        return answer["seconds"], answer["tokens"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"{self.engine} ended:\n{self._log.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def write_folder(model: str) -> str:
    """The model as a folder that vLLM reads."""
    sys.path.insert(0, str(ROOT))
    from engine_proc.models.hf import as_transformers
    from engine_proc.models.loader import load_model

    folder = tempfile.mkdtemp(prefix="isorate-bench-")
    as_transformers(load_model(model)).save_pretrained(folder)
    return folder


def measure(dtype: str, arguments: argparse.Namespace, folder: str) -> dict[str, dict[str, list[float]]]:
    """Tokens per second by engine and load, one value a round."""
    workers = [Worker(engine, dtype, arguments, folder) for engine in arguments.engines]
    for worker in workers:
        worker.wait_until_ready()
    rates: dict[str, dict[str, list[float]]] = {w.engine: {load.name: [] for load in LOADS} for w in workers}
    first: dict[str, list[list[int]]] = {}
    for number in range(arguments.rounds + 1):
        last: Rates = {dtype: {worker.engine: {} for worker in workers}}
        for load in LOADS:
            for worker in workers:
                seconds, out = worker.run(load, seed=1000 * number + len(load.name))
                if number:
                    rates[worker.engine][load.name].append(load.counted / seconds)
                    last[dtype][worker.engine][load.name] = [load.counted / seconds]
                elif dtype == "float32":
                    same = sum(a == b for a, b in zip(out, first.setdefault(load.name, out), strict=True))
                    print(f"  {worker.engine}: {load.name} outputs equal to {workers[0].engine}'s: {same}/{len(out)}")
        if number and arguments.json:
            add_to(arguments.json, last)  # at once: a part that is cut off keeps its whole rounds
    for worker in workers:
        worker.close()
    return rates


def report(rates: Rates, engines: Sequence[str]) -> None:
    print("\n| dtype | load | " + " | ".join(engines) + " |")
    print("|---|---|" + "---|" * len(engines))
    for dtype, by_engine in rates.items():
        for load in LOADS:
            cells = []
            base = statistics.median(by_engine[engines[0]][load.name])
            for engine in engines:
                values = by_engine[engine][load.name]
                median = statistics.median(values)
                ratio = f", {base / median:.2f}x" if engine != engines[0] else ""
                cells.append(f"{median:,.0f} ({min(values):,.0f}-{max(values):,.0f}){ratio}")
            print(f"| {dtype} | {load.name} | " + " | ".join(cells) + " |")
    print(f"\nTokens/s: median (range) of the rounds; Nx: {engines[0]} has N times as many.")


def add_to(path: Path, rates: Rates) -> None:
    """Add the rounds to those of earlier parts in the file."""
    together: Rates = json.loads(path.read_text()) if path.exists() else {}
    for dtype, by_engine in rates.items():
        for engine, by_load in by_engine.items():
            loads = together.setdefault(dtype, {}).setdefault(engine, {})
            for name, values in by_load.items():
                loads.setdefault(name, []).extend(values)
    path.write_text(json.dumps(together, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:gpt2")
    parser.add_argument("--engines", default=None, help="comma-separated (default: all that are there)")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--cores", default="", help="such as 0,1 (default: the mask as it is)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vllm-python", default=os.environ.get("VLLM_PYTHON", ""))
    parser.add_argument("--folder", default="", help="the model as a folder for vLLM (default: one is written)")
    parser.add_argument("--options", default="{}", help="JSON: arguments of the native backend")
    parser.add_argument("--json", type=Path, help="also add every value to this file")
    parser.add_argument("--table", type=Path, help="print the table of such a file, and measure nothing")
    parser.add_argument("--vocab", type=int, default=49152, help="token ids are drawn below this")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.model, arguments.dtype, arguments.vocab, json.loads(arguments.options))
        return
    if arguments.table:
        rates = json.loads(arguments.table.read_text())
        report(rates, [engine for engine in ENGINES if all(engine in by_engine for by_engine in rates.values())])
        return
    there = [engine for engine in ENGINES if engine != "vllm" or arguments.vllm_python]
    arguments.engines = arguments.engines.split(",") if arguments.engines else there
    folder = arguments.folder or (write_folder(arguments.model) if "vllm" in arguments.engines else "")
    rates = {dtype: measure(dtype, arguments, folder) for dtype in arguments.dtypes.split(",")}
    report(rates, arguments.engines)


if __name__ == "__main__":
    main()
