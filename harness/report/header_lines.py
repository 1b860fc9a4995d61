"""The lines above the latencies: what ran, on what, how much of it, and how fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.common.stamps import Status
from harness.report.arrival_words import arrival_lines
from harness.report.words import cpu_list, described, number, rate_words, safe, switch, time_words

Lines = Iterator[tuple[str, str]]

#: Keys of the engine's description that have a line of their own.
_SHOWN = (
    "model", "weights", "note", "device", "dtype", "threads", "paged_attn", "cuda_graph", "nvtx", "prefix_cache",
)  # fmt: skip

_WIRES = {
    "compiled": "compiled",
    "python": "python: transit includes the ingress wait",
    "none": "none: submitter and engine are threads of one process",
}


def setup_lines(summary: Mapping[str, Any]) -> Lines:
    """What was measured: (label, words), the published labels first."""
    engine, config, plan = summary["engine"], summary["config"], summary["plan"]

    def said(name: str) -> Any:
        return engine.get(name, config.get(name))

    yield "Model", _joined(said("model"), engine.get("weights"), engine.get("note"))
    yield "Device", _joined(said("device"), said("dtype"), _threads(engine.get("threads")))
    yield "Pretok", switch(bool(plan.get("pretokenized")))
    yield "Tokenize workers", _workers(config.get("tokenize_workers"), bool(plan.get("pretokenized")))
    yield "Paged attention", switch(said("paged_attn"))
    yield "CUDA Graph", switch(said("cuda_graph"))
    yield "NVTX", switch(said("nvtx"))
    rest = {
        name: value for name, value in engine.items() if name not in _SHOWN and not isinstance(value, Mapping | list)
    }
    if rest:
        yield "Engine", described(rest)


def host_lines(summary: Mapping[str, Any]) -> Lines:
    """Where the processes ran and how the pacer waited."""
    placement, pacer = summary["host"]["placement"], summary["host"]["pacer"]
    cores = [f"{name} {cpu_list(placement.get(name))}" for name in ("engine", "submitter", "harness")]
    yield "Cores", ", ".join(cores)
    note = str(placement.get("note") or "").partition(": ")[2]
    if note:  # why they are where they are
        yield "", safe(note)
    if pacer:
        wait = f"wait {safe(pacer['wait'])}" if pacer.get("wait") else None
        margin = pacer.get("margin_ns")
        spin = None if margin is None else f"spins the last {time_words(margin / 1e6)}" if margin else "no spin"
        yield "Pacer", _joined(pacer.get("name"), wait, spin)
    calibration = pacer.get("calibration") or pacer.get("sleep_overshoot_ns")
    if calibration:
        yield "Calibration", f"overshoot {described(_without_margin(calibration))}"
    wire = summary["host"]["wire"]
    yield "Wire thread", _WIRES.get(wire, safe(wire))


def load_lines(summary: Mapping[str, Any], run: Mapping[str, Any]) -> Lines:
    """How much was sent, what became of it, and at which rate."""
    counts, tokens, plan = run["counts"], run["tokens"], summary["plan"]
    if plan.get("trace"):
        yield "Trace", _trace(plan["trace"])
    yield "Requests", f"{number(counts['planned'])} planned, {number(counts['sent'])} sent"
    said = [f"{number(counts[status.word])} {status.word}" for status in Status if status]
    yield "Status", ", ".join(said[:4]) + ","  # in two lines, so that no number is parted from its word
    yield "", ", ".join(said[4:])
    whole = plan.get("prompt_tokens")
    differs = whole is not None and whole != tokens["prompt"]
    yield "Prompt tokens", number(tokens["prompt"]) + (f" completed, {number(whole)} in the plan" if differs else "")
    cache = _prefix_cache(summary, run)
    if cache is not None:
        yield "Prefix cache", cache
    yield "Completion tokens", number(tokens["completion"])
    yield "Submit wall", time_words(run["submit_wall_ms"])
    yield "Submit interval", _interval(plan)
    yield from arrival_lines(run, plan)
    rate, throughput = run["rate"], run["throughput"]
    yield "Rate", f"offered {rate_words(rate['offered'], '/s')}, completed {rate_words(rate['completed'], '/s')}"
    output, total = throughput["output_tokens_per_s"], throughput["total_tokens_per_s"]
    yield "Throughput", f"output {rate_words(output, ' tokens/s')}, with prompts {rate_words(total, ' tokens/s')}"
    if run.get("slo"):
        yield "Goodput", _goodput(run["slo"])
    busy = run["engine"]["busy_fraction"]
    preemptions = run["engine"].get("preemptions")
    often = f", {number(preemptions)} preemptions" if preemptions else ""
    yield "Engine busy", "not measured" if busy is None else f"{100 * busy:.0f} % of the run{often}"


def _trace(account: Mapping[str, Any]) -> str:
    """Where the load was recorded, and how much of it is sent."""
    speed = "" if account["speed"] == "1" else f", {safe(account['speed'])} x as fast"
    name = safe(str(account["file"]).rsplit("/", 1)[-1])
    return f"{name} ({safe(account['format'])}), {number(account['requests'])} of {number(account['rows'])} rows{speed}"


def ended_line(summary: Mapping[str, Any]) -> str | None:
    """Why the session ended, where it was not because all was done."""
    if summary["ended"] == "done":
        return None
    words = str(summary["ended"]).replace("_", " ")
    return f"{words}: {safe(summary['end_detail'])}" if summary.get("end_detail") else words


def _goodput(slo: Mapping[str, Any]) -> str:
    """Requests per second within all objectives, and how many kept each."""
    shares = ", ".join(
        f"{safe(one['metric']).upper()} within {time_words(one['limit_ms'])}: {one['within_percent']:.2f} % of "
        f"{one['wanted_percent']:g} % ({'met' if one['met'] else 'missed'})"
        for one in slo["objectives"]
    )
    return f"{rate_words(slo['goodput'], '/s')} within all objectives; {shares}"


def _prefix_cache(summary: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    """The hit rate; None for an engine that has no prefix cache and says nothing of one."""
    is_on = summary["engine"].get("prefix_cache", summary["config"].get("prefix_cache"))
    counted = run["engine"].get("prefix_cache")
    if not counted or not (is_on or counted["cached_tokens"]):
        return "off" if is_on is False else None
    cached, prompt = counted["cached_tokens"], counted["prompt_tokens"]
    rate = "" if counted["hit_rate"] is None else f"{100 * counted['hit_rate']:.1f} % hit rate, "
    return f"{rate}{number(cached)} of {number(prompt)} prompt tokens"


def gate_words(plan: Mapping[str, Any]) -> str:
    """What decides when the requests of a gated plan leave."""
    think = f"think time {time_words(plan['mean_think_ms'])}"
    if plan.get("closed_loop"):
        users = f"{number(plan['users'])} user{'' if plan['users'] == 1 else 's'}"
        return f"closed loop, {users}, {think}"
    waits = number(plan["gated_requests"])
    return f"{number(plan['users'])} at their own times, {waits} after an earlier one's end, {think}"


def _interval(plan: Mapping[str, Any]) -> str:
    cap, waits = plan.get("max_concurrency"), plan.get("gated_requests")
    at_most = f", at most {number(cap)} in flight" if cap else ""
    if not waits:
        return _open_interval(plan) + at_most
    return gate_words(plan) + at_most


def _open_interval(plan: Mapping[str, Any]) -> str:
    rate, schedule = plan.get("nominal_rate"), safe(plan["schedule"])
    if not rate:
        return f"0 ms, {schedule} (burst)" if schedule != "burst" else "0 ms, burst"
    return f"{time_words(1e3 / rate)}, {schedule} ({rate_words(rate, '/s')})"


def _without_margin(calibration: Any) -> Any:
    """The margin that follows from a calibration stands in the pacer's line already."""
    if not isinstance(calibration, Mapping):
        return calibration
    return {name: value for name, value in calibration.items() if name != "margin_ns"}


def _workers(workers: Any, pretok: bool) -> str:
    if pretok:
        return "0 (tokenized before the run)"
    return "0 (inline)" if workers in (None, 0) else number(workers)


def _threads(threads: Any) -> str | None:
    return None if threads is None else f"{threads} thread{'' if threads == 1 else 's'}"


def _joined(*words: Any) -> str:
    shown = [safe(word) for word in words if word not in (None, "", "none")]
    return ", ".join(shown) or "not stated"
