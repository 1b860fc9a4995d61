"""What a long prompt does to the streams that are decoding: ITL with it and without, prompts cut and whole.

    python benchmarks/chunked_prefill.py

Eight streams decode; a prompt of 1,000 tokens arrives among them. Three settings take turns: no such prompt, chunks of
`--chunk` tokens, the whole prompt in one step (`--chunked-prefill off`). The chunk's own time is what the steps that
hold a chunk take, by the step table. Gaps count from when all streams have begun. `decode_first`, for such loads.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from typing import NamedTuple

import numpy as np
from step_loop_run import loop_run, make_backend, request

STREAMS = 8


class Figures(NamedTuple):
    """Milliseconds. chunk: the longest step with prompt tokens of the late request; rise is over the run without it."""

    itl_p50: float
    itl_p99: float
    itl_max: float
    chunk: float
    chunks: int


def once(backend: object, arguments: argparse.Namespace, seed: int, with_prompt: bool) -> Figures:
    draw = random.Random(seed)
    ids = [[draw.randrange(50257) for _ in range(32)] for _ in range(STREAMS)]
    streams = [request(row, prompt, arguments.new_tokens) for row, prompt in enumerate(ids)]
    late = request(STREAMS, [draw.randrange(50257) for _ in range(arguments.prompt_tokens)], 1) if with_prompt else None
    with loop_run(backend, STREAMS + with_prompt) as run:  # type: ignore[arg-type]
        run.drive(streams, late, late_step=arguments.new_tokens // 4)
    steps = run.steps
    gaps = np.concatenate([run.gaps_ns(row, with_all=STREAMS) for row in range(STREAMS)]) / 1e6
    assert len(gaps) > STREAMS * arguments.new_tokens * 0.8
    prompts = (steps["prefill_tokens"] > 0) & (steps["decode_rows"] == STREAMS)
    assert int(steps["prefill_tokens"][prompts].sum()) == (arguments.prompt_tokens if with_prompt else 0)
    times = (steps["t_end"] - steps["t_start"])[prompts] / 1e6
    p50, p99 = (float(np.percentile(gaps, p)) for p in (50, 99))
    return Figures(p50, p99, float(gaps.max()), float(times.max(initial=0.0)), len(times))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--new-tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--chunk", type=int, default=128, help="tokens of a step")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    common = {"policy": "decode_first", "prefix_cache": False, "prefill_max_tokens": arguments.chunk}
    chunked, whole = (make_backend(arguments.dtype, chunked=on, **common) for on in (True, False))
    sides = {"no long prompt": (chunked, False), f"chunks of {arguments.chunk}": (chunked, True),
             "unchunked": (whole, True)}  # fmt: skip
    figures: dict[str, list[Figures]] = {name: [] for name in sides}
    for repeat in range(arguments.repeats):
        for name, (backend, with_prompt) in sides.items():
            figures[name].append(once(backend, arguments, repeat, with_prompt))
    print(f"{STREAMS} streams, {arguments.new_tokens} tokens each, {arguments.dtype}; "
          f"median of {arguments.repeats} runs, ms\n")  # fmt: skip
    print("| | ITL p50 | ITL p99 | ITL max | longest step with a chunk | chunks | rise of p99 | of it in chunk times |")
    print("|---|---|---|---|---|---|---|---|")
    base = statistics.median(f.itl_p99 for f in figures["no long prompt"])
    for name, values in figures.items():
        median = Figures._make(statistics.median(column) for column in zip(*values, strict=True))
        rise = median.itl_p99 - base
        times = f"{rise / median.chunk:.2f}" if median.chunk else ""
        print(f"| {name} | {median.itl_p50:.1f} | {median.itl_p99:.1f} | {median.itl_max:.1f} | {median.chunk:.1f} | "
              f"{median.chunks:.0f} | {rise:.1f} | {times} |")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
