"""Greedy float32 tokens and logits of the engine against transformers `generate` in float64, in every configuration.

    .venv/bin/python benchmarks/equality.py --out equality.jsonl            # run; again with --resume to go on
    .venv/bin/python benchmarks/equality.py --out equality.jsonl --table    # what is there so far

The prompts are the first turns of spec_bench that fit, in groups of all lengths. A token may differ only where the
truth's two best logits are closer than the tolerance (the comparison of that prompt ends there): such ties are counted,
everything else is an error. Each line of the file is one setting over one group of prompts. The integration tests run
the same comparison over few prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.equality_cases import (  # noqa: E402
    COMBINED,
    EACH_CHOICE,
    RATIO,
    SERVED,
    SINGLE,
    TOLERANCE,
    Found,
    Products,
    Setting,
    compare_references,
    is_within,
    load_prompts,
    references,
    run_setting,
)
from engine_proc.models.hf import as_transformers  # noqa: E402
from engine_proc.models.loader import LoadedModel, load_model  # noqa: E402

FLOAT32 = "transformers generate"  # the float32 reference's own line


class Job(NamedTuple):
    """One setting with one form of the linear layers. `is_held`: to TOLERANCE, not to a share of float32's distance."""

    setting: Setting
    products: Products
    is_held: bool


def jobs_of(needs_exact: bool, wanted: Sequence[Setting]) -> list[Job]:
    """Packed products in every setting; where float32 products alone lead beyond the tolerance, exact ones do that, and
    packed ones run in SERVED."""
    jobs = []
    for setting in wanted:
        is_native = setting.engine == "native"
        if not needs_exact or not is_native or setting == SERVED:
            jobs.append(Job(setting, "packed", not needs_exact))
        if needs_exact and is_native:
            jobs.append(Job(setting, "exact", True))
    return jobs


def followed_by(job: Job, worst: float) -> Job | None:
    """What goes after a job that came so far from the truth: where exact products are beyond the tolerance, it is what
    storing float32 makes of it, or an error of ours. With a wide stream q, k, v and attention alone are in float32."""
    if job.products == "exact" and worst > TOLERANCE:
        return Job(job.setting, "exact, wide stream", True)
    return None


def groups(prompts: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """Groups of about `size` prompts that hold short and long ones alike: each stands for all of them."""
    ordered, count = sorted(prompts, key=len), max(-(-len(prompts) // size), 1)
    return [list(ordered[first::count]) for first in range(count)]


def run_group(loaded: LoadedModel, name: str, number: int, part: Sequence[list[int]], jobs: Sequence[Job],
              until: float) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A record a job, and one for what must follow it, until the time `until` (seconds of time.time). One for float32
    `generate` comes first where a job is measured by it."""
    start = time.perf_counter()
    expected = references(as_transformers(loaded, torch.float64), part)
    base = {"model": name, "group": number}
    float32 = Found()
    if not all(job.is_held for job in jobs):
        float32 = compare_references(expected, references(as_transformers(loaded), part))
        float32.seconds = time.perf_counter() - start
        yield base | {"setting": FLOAT32, "products": "float32", "ok": not float32.wrong, **asdict(float32)}
    waiting = list(jobs)
    while waiting and time.time() < until:
        job = waiting.pop(0)
        found = run_setting(loaded, job.setting, part, expected, job.products)
        follower = followed_by(job, found.worst)
        if follower is not None:
            waiting.insert(0, follower)
        ok = is_within(found, job.is_held, float32) and (found.preemptions > 0 or not job.setting.small_pool)
        if job.setting.warm:
            ok &= found.cached_tokens >= sum((len(prompt) - 1) // 16 * 16 for prompt in part)
        yield base | {"setting": job.setting.name, "products": job.products, "ok": ok, **asdict(found)}


def is_ok(record: dict[str, Any], records: Sequence[dict[str, Any]]) -> bool:
    """A record's own verdict; one that is followed, because it was beyond the tolerance, has its follower's."""
    if record["products"] != "exact" or record["worst"] <= TOLERANCE:
        return bool(record["ok"])
    key = (*key_of(record)[:3], "exact, wide stream")
    return not record["wrong"] and any(other["ok"] for other in records if key_of(other) == key)


def key_of(record: dict[str, Any]) -> tuple[str, int, str, str]:
    return record["model"], record["group"], record["setting"], record["products"]


def read_records(path: Path) -> list[dict[str, Any]]:
    """The file's records, without a last line that was cut off."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The sums over the groups, a line a setting."""
    yield ("| model | setting | products | prompts | tokens | errors | tied tokens | largest difference | "
           "rms | preemptions | cached tokens | s | ok |")  # fmt: skip
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    sums: dict[tuple[str, str, str], tuple[Found, list[bool]]] = {}
    for record in records:
        found, oks = sums.setdefault((record["model"], record["setting"], record["products"]), (Found(), []))
        found.add(Found(**{name: record[name] for name in asdict(Found())}))
        oks.append(is_ok(record, records))
    for (model, setting, products), (f, oks) in sorted(sums.items(), key=lambda item: item[0][0]):
        yield (f"| {model} | {setting} | {products} | {f.prompts} | {f.compared} | {len(f.wrong)} | {f.near_ties} | "
               f"{f.worst:.1e} | {f.rms:.1e} | {f.preemptions} | {f.cached_tokens} | {f.seconds:.0f} | "
               f"{'yes' if all(oks) else 'NO'} |")  # fmt: skip


def _until(clock: str) -> float:
    """HH:MM of the local clock, the next time that it is that late; seconds of time.time."""
    hours, minutes = map(int, clock.split(":"))
    now = time.localtime()
    then = time.mktime((*now[:3], hours, minutes, 0, *now[6:]))
    return then if then > time.time() else then + 86400


def _span(text: str) -> range:
    """"3-5" or "3" as the numbers of groups."""
    first, _, last = text.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    if not numbers:
        raise argparse.ArgumentTypeError(f"{text} holds no group")
    return numbers


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="builtin:gpt2,builtin:smollm2")
    parser.add_argument("--exact", default="builtin:smollm2",
                        help="models whose settings need exact products to be within the tolerance")  # fmt: skip
    parser.add_argument("--prompts", type=int, default=480)
    parser.add_argument("--settings", default="",
                        help="those whose name contains one of these, comma-separated (default: each choice once)")
    parser.add_argument("--group", type=int, default=120, help="prompts whose reference logits are held at a time")
    parser.add_argument("--only", type=_span, metavar="FIRST-LAST",
                        help="these groups alone: so several processes share the work, a file each")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--until", type=_until, default=float("inf"), metavar="HH:MM", help="start nothing after that")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, written as it goes")
    parser.add_argument("--resume", action="store_true", help="go on where the file ends")
    parser.add_argument("--table", action="store_true", help="print the table of the file and end")
    return parser.parse_args()


def check_groups(records: Sequence[dict[str, Any]], prompts: dict[str, list[list[list[int]]]]) -> None:
    """Ends the program where `records` are of groups of another size: their numbers would stand for other prompts."""
    for record in records:
        parts = prompts.get(record["model"])
        if parts is not None and (record["group"] >= len(parts) or len(parts[record["group"]]) != record["prompts"]):
            sys.exit(f"the file's group {record['group']} of {record['model']} has {record['prompts']} prompts: go on "
                     "with the --group and --prompts that it was begun with")  # fmt: skip


def run_all(arguments: argparse.Namespace, records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Records, a group of each model after the other, in every setting: the references of a group are made once."""
    known = (*EACH_CHOICE, *COMBINED, *SINGLE)
    parts = [part for part in arguments.settings.split(",") if part]
    wanted = [s for s in known if any(part in s.name for part in parts)] if parts else EACH_CHOICE
    if not wanted:
        sys.exit(f"--settings: no setting's name contains {arguments.settings!r}")
    done = {key_of(record): record["worst"] for record in records}
    names = arguments.models.split(",")
    loaded = {name: load_model(name) for name in names}
    prompts = {name: groups(load_prompts(name, arguments.prompts), arguments.group) for name in names}
    check_groups(records, prompts)
    every = range(max(map(len, prompts.values())))
    for number in every if arguments.only is None else arguments.only:
        for name in names:
            jobs = jobs_of(name in arguments.exact.split(","), wanted)
            worsts = [done.get((name, number, job.setting.name, job.products), 0.0) for job in jobs]
            jobs += [job for job in map(followed_by, list(jobs), worsts) if job is not None]
            jobs = [job for job in jobs if (name, number, job.setting.name, job.products) not in done]
            if not jobs or number >= len(prompts[name]) or time.time() >= arguments.until:
                continue
            for record in run_group(loaded[name], name, number, prompts[name][number], jobs, arguments.until):
                if key_of(record) not in done:
                    done[key_of(record)] = record["worst"]
                    yield record


def main() -> int:
    arguments = _arguments()
    records = read_records(arguments.out)
    if not arguments.table:
        if records and not arguments.resume:
            print(f"{arguments.out} is there already: --resume goes on with it", file=sys.stderr)
            return 2
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        text = "".join(json.dumps(record) + "\n" for record in records)
        arguments.out.write_text(text, encoding="utf-8")  # without what was cut off
        with arguments.out.open("a", encoding="utf-8") as file:
            for record in run_all(arguments, tuple(records)):
                print(json.dumps(record), file=file, flush=True)
                print(f"{time.strftime('%H:%M:%S')} {key_of(record)}: {record['worst']:.1e}, ok {record['ok']}, "
                      f"{record['seconds']:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
                records.append(record)
    print("\n".join(table(records)))
    print(f"\ntolerance {TOLERANCE:.0e}; where it is not met by float32 products alone: {RATIO} times the rms of "
          f"{FLOAT32}; where it is not met by exact products: by a wide stream; distances are to generate in float64")
    return int(not records or not all(is_ok(record, records) for record in records))


if __name__ == "__main__":
    sys.exit(main())
