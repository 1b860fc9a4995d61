"""Every trace format, in the order in which they are tried on a file."""

from __future__ import annotations

from harness.common.errors import ConfigError
from harness.plan.traces.azure import AZURE
from harness.plan.traces.burstgpt import BURSTGPT
from harness.plan.traces.mooncake import MOONCAKE
from harness.plan.traces.own_jsonl import OWN_JSONL
from harness.plan.traces.perf_analyzer import PERF_ANALYZER
from harness.plan.traces.qwen_bailian import QWEN_BAILIAN
from harness.plan.traces.rows import Format
from harness.plan.traces.saved_plan import SAVED_PLAN
from harness.plan.traces.source import Source
from harness.plan.traces.vllm_timed import VLLM_TIMED
from harness.plan.traces.weka import WEKA

FORMATS: tuple[Format, ...] = (
    SAVED_PLAN, AZURE, BURSTGPT, OWN_JSONL, QWEN_BAILIAN, MOONCAKE, PERF_ANALYZER, WEKA, VLLM_TIMED,
)  # fmt: skip
_KINDS = {"csv": "CSV", "json": "JSON", "npz": "a plan file"}


def find_format(source: Source, name: str | None) -> Format:
    """The format of a file: the named one, or the first that recognises it. Raises ConfigError."""
    where = f"--trace {source.path}"
    if name is not None:
        chosen = next((one for one in FORMATS if one.name == name), None)
        known = ", ".join(one.name for one in FORMATS)
        if chosen is None:
            raise ConfigError(f"--trace-format knows no format {name!r}: there are {known}")
        if chosen.kind != source.kind:
            raise ConfigError(f"{where}: is {_KINDS[source.kind]}, and --trace-format {name} is {_KINDS[chosen.kind]}")
        return chosen
    for one in FORMATS:
        if one.kind == source.kind and one.recognise is not None and one.recognise(source.head):
            return one
    what = "columns" if source.kind == "csv" else "fields of the first record"
    found = ", ".join(name.strip()[:40] for name in list(source.head)[:12]) or "none"
    raise ConfigError(f"{where}: no known trace format has its {what} ({found}); --trace-format names one")
