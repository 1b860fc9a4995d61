"""Where the time of a decode step goes: the model, and everything that the engine does around it.

    python benchmarks/step_cost.py --dtype bfloat16

The real native engine under the real step loop; each part is a function that is timed from outside, and a part's time
does not count what the parts within it take. "The model" is its layers with attention, and its output head; all else
is the step loop's own cost. Means over the steps of full batches, medians over the repeats.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from step_loop_run import loop_run, make_backend, request

import engine_proc.backends.native as native

MODEL = ("model: layers and attention", "model: output head")


class Timer:
    """Own time of nested parts, in ns."""

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.on = False
        self._inner: list[int] = []

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Time `owner.name` as `part` from now on."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*positional: Any, **named: Any) -> Any:
            start = time.perf_counter_ns()
            self._inner.append(0)
            try:
                return function(*positional, **named)
            finally:
                took = time.perf_counter_ns() - start
                inner = self._inner.pop()
                if self._inner:
                    self._inner[-1] += took
                if self.on:
                    self.own[part] = self.own.get(part, 0) + took - inner

        setattr(owner, name, timed)


def wrap_all(timer: Timer, backend: Any, loop: Any) -> None:
    parts, scheduler = backend._parts, backend._scheduler
    timer.wrap(parts.model, "hidden", MODEL[0])
    timer.wrap(parts.model, "logits", MODEL[1])
    timer.wrap(parts.runner, "forward", "inputs of the pass")
    timer.wrap(scheduler, "schedule", "scheduling")
    timer.wrap(scheduler, "commit", "commit")
    timer.wrap(native, "choose", "choosing the tokens")
    timer.wrap(backend, "_land", "tokens to the host, ends of rows")
    timer.wrap(backend, "step", "the backend's other work")
    timer.wrap(loop, "_log_step", "step table")
    timer.wrap(loop, "_log_tokens", "token log")
    timer.wrap(loop, "_send", "result messages")
    timer.wrap(loop, "_take_tokens", "stamps of the tokens")
    timer.wrap(loop, "_emit", "other stamps")
    timer.wrap(loop, "_step", "the loop's other work")


def unwrap(owner: Any, names: tuple[str, ...]) -> None:
    for name in names:
        vars(owner).pop(name, None)


def once(backend: Any, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Own ms a step of each part, over steps with a full batch of decode rows."""
    draw, rows = random.Random(seed), arguments.batch
    requests = [request(row, [draw.randrange(50257) for _ in range(64)], arguments.new_tokens) for row in range(rows)]
    timer = Timer()
    choose = native.choose
    with loop_run(backend, rows) as run:
        wrap_all(timer, backend, run.loop)
        step = run.loop._step
        full = [0]

        def counted() -> None:
            timer.on = run.word("tokens") >= rows and run.word("terminal") == 0
            full[0] += timer.on
            step()

        run.loop._step = counted  # type: ignore[method-assign]
        run.drive(requests)
    native.choose = choose
    unwrap(backend, ("_land", "step"))
    unwrap(backend._scheduler, ("schedule", "commit"))
    unwrap(backend._parts.model, ("hidden", "logits"))
    unwrap(backend._parts.runner, ("forward",))
    assert full[0] == arguments.new_tokens - 1
    assert np.all(run.steps["decode_rows"][-full[0] :] == rows)
    return {part: own / full[0] / 1e6 for part, own in timer.own.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    backend = make_backend(arguments.dtype)
    runs = [once(backend, arguments, repeat) for repeat in range(arguments.repeats)]
    medians = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
    total = sum(medians.values())
    print(f"| batch {arguments.batch}, {arguments.dtype} | ms a step | % |\n|---|---|---|")
    for part, value in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"| {part} | {value:.3f} | {100 * value / total:.2f} |")
    own = sum(value for part, value in medians.items() if part not in MODEL)
    print(f"| **all but the model** | **{own:.3f}** | **{100 * own / total:.2f}** |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
