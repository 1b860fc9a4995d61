"""The command line of `run`: every flag with its help, grouped. What a flag may hold is checked by `RunConfig`."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NamedTuple, NoReturn

from harness.common.errors import ConfigError


class Option(NamedTuple):
    """A flag: its spellings, the `RunConfig` field, the word for its value (empty: a switch), the help.

    toggle: the value is on or off and may be left out, which is on; off_flags: switches that turn it off. repeats: it
    may be given several times.
    """

    flags: tuple[str, ...]
    field: str
    metavar: str
    help: str
    switch_to: bool = True
    toggle: bool = False
    off_flags: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        return (*self.flags, *self.off_flags)


def _value(flag: str, metavar: str, text: str, *more: str, field: str = "", repeats: bool = False) -> Option:
    return Option((flag, *more), field or flag[2:].replace("-", "_"), metavar, text, repeats=repeats)


def _switch(flag: str, text: str) -> Option:
    off = flag.startswith("--no-")
    return Option((flag,), flag[5 if off else 2 :].replace("-", "_"), "", text, switch_to=not off)


def _toggle(flag: str, text: str, *off_flags: str) -> Option:
    return Option((flag,), flag[2:].replace("-", "_"), "on|off", text, toggle=True, off_flags=off_flags)


GROUPS: dict[str, tuple[Option, ...]] = {
    "Load": (
        _value("--schedule", "KIND", "absolute: request i is due at t0 + i * interval; relative: one interval after "
               "the previous send call returned (default absolute)", "--submit-schedule"),
        _value("--arrival", "KIND", "constant, poisson, gamma, weibull, mmpp (bursts and quiet times), ramp, steps, "
               "sine or burst (default constant, or what the form of --rate says)"),
        _value("--submit-interval-ms", "MS", "time between requests, 0 is a burst; of random ones the mean (default "
               "350)"),
        _value("--rate", "R", "requests per second, in place of --submit-interval-ms; START:END is a ramp, "
               "5x30s,10x30s are steps"),
        _value("--max-concurrency", "K", "most requests in flight, one that is due waits for a slot (default: no "
               "limit); with --think-time: the number of users (default 1)"),
        _value("--think-time", "MS", "closed loop in place of a rate: each user sends its next request so long after "
               "the end of its last one; exp:MS draws exponential times of that mean"),
        _value("--num-requests", "N", "requests of a run (default 64; with --prompts or --dataset: all of the "
               "file, and more than that cycle over them; with --duration or steps: what they hold)"),
        _value("--duration", "S", "plan requests for so many seconds; with --num-requests, what comes first ends it",
               field="duration_s"),
        _value("--spacing", "KIND", "even or poisson: how ramp, steps and sine place requests (default even)"),
        _value("--burstiness", "B", "shape of --arrival gamma: 1 is Poisson, less is burstier, inf is constant"),
        _value("--weibull-shape", "K", "shape of --arrival weibull: 1 is Poisson, less is burstier"),
        _value("--mmpp-on", "S", "mean length of a burst of --arrival mmpp (default 1)", field="mmpp_on_s"),
        _value("--mmpp-off", "S", "mean length of the quiet time between (default 4)", field="mmpp_off_s"),
        _value("--mmpp-off-rate", "R", "requests per second in quiet times (default 0)"),
        _value("--sine-amplitude", "A", "swing of --arrival sine in shares of its rate, 0 to 1 (default 0.5)"),
        _value("--sine-period", "S", "seconds from one peak to the next (default 60)", field="sine_period_s"),
        _value("--arrival-seed", "N", "seed of the arrivals alone (default: --seed)"),
        _value("--plan", "FILE", "run the load of a plan.npz again; it decides prompts, times and new tokens"),
        _value("--pacer", "KIND", "auto, python or compiled: the loop that keeps the clock (default auto)"),
        _value("--payload", "KIND", "inline: a message holds its request; index: its number alone, the engine reads "
               "the request from the plan (default inline)"),
        _value("--wait", "KIND", "auto, sleep, hybrid or spin: how the pacer waits; hybrid spins the last stretch, as "
               "long as sleeps are late at start; spin never sleeps; auto is hybrid on its own core (default auto)"),
    ),
    "Traces": (
        _value("--trace", "FILE", "replay a recorded trace: it decides times and lengths; its format is recognised"),
        _value("--trace-format", "NAME", "read it as azure, burstgpt, mooncake, qwen-bailian, weka, perf-analyzer, "
               "vllm, jsonl (isorate's own) or plan (plan.npz)"),
        _value("--trace-unit", "UNIT", "s, ms, us or ns: what its times count in (default: as its format has it)"),
        _value("--trace-window", "A:B", "only rows from second A of the trace until before second B; A is t0"),
        _value("--trace-speed", "X", "replay X times as fast (default 1)"),
        _value("--trace-limit", "N", "only the first N rows (of the window)"),
        _switch("--sort", "put rows whose times go back in order, in place of refusing them"),
        _value("--lengths", "POLICY", "rows beyond the context: keep (the engine rejects them), scale, clip or skip "
               "(default keep)"),
        _value("--max-model-len", "N", "the context that rows must fit (default: the model's)"),
        _value("--trace-empty", "POLICY", "rows without prompt or output tokens: keep or skip (default keep)"),
        _value("--trace-block-size", "N", "tokens that a block id of it stands for (default: as its format has it)"),
        _value("--trace-labels", "NAME=FIELD[,...]", "names of the fields timestamp, input_length, output_length and "
               "hash_ids of a vllm trace"),
        _value("--trace-multiplier", "S", "seconds that a vllm trace's time unit has (default 1)"),
    ),
    "Prompts": (
        _value("--prompt", "TEXT", "the text to repeat (default Hello)"),
        _value("--prompt-repeats", "N[,N...]", "how often it is repeated; several are cycled over the requests "
               "(default 32)"),
        _switch("--unique-prompts", "append ' [i]' to the prompt of request i"),
        _value("--prompts", "FILE", "prompts from a file: JSON Lines with 'prompt' or 'turns' (the first turn), or a "
               "string a line; or plain text, one a line. JSON Lines if it is named .jsonl or .json or starts with {"),
        _value("--prompt-kind", "KIND", "repeat: --prompt over and over; random: token ids drawn from the vocabulary; "
               "corpus: text of --corpus; dataset: --dataset (default: as the other flags say, else "
               "repeat)"),
        _value("--corpus", "FILE", "a text file; each prompt is cut from a place of its own, exactly --input-len long"),
        _value("--dataset", "FILE", "prompts of a dataset: JSON Lines, a JSON list, CSV or Parquet, also as .gz"),
        _value("--dataset-format", "KIND", "auto, sharegpt, spec_bench, humaneval, gsm8k, jsonl, csv or parquet "
               "(default auto: by its name and first record)"),
        _value("--prompt-field", "NAME", "the field with the prompt, a list of turns or of messages (default: the "
               "format's)"),
        _value("--output-field", "NAME", "the field with the output, a text or a number of tokens: so many are "
               "generated"),
        _value("--turns", "N|all", "turns of each conversation, one request each (default 1)"),
        _value("--session-think-ms", "MS", "from the end of a turn to the next one (default: as the dataset says, "
               "else 0)"),
        _value("--input-len", "LEN", "tokens of each prompt: N, uniform:A:B, normal:M:S, lognormal:M:S, zipf:A or "
               "file:PATH, see docs/load.md"),
        _value("--prefix-len", "N", "tokens that the prompts of a group begin with alike, before --input-len others"),
        _value("--prefix-groups", "G", "request i belongs to group i mod G (default 1)"),
        _switch("--pretok", "tokenize before the run and send token ids"),
        _value("--tokenize-workers", "N", "threads that tokenize in the engine, 0 does it inline (default 0)"),
        _value("--max-new-tokens", "N", "tokens to generate for each request, 0 completes at once (default 4)"),
        _value("--output-len", "LEN", "tokens to generate for each request, as --input-len, or dataset: as many "
               "as were recorded; in place of --max-new-tokens; needs --no-stop-on-eos to be reached by every request"),
        _value("--temperature", "T", "0 is greedy (default 0)"),
        _value("--top-k", "K", "draw from the K likeliest tokens only, 0 is no cut (default 0)"),
        _value("--top-p", "P", "draw from the likeliest tokens of this mass only (default 1)"),
        _value("--min-p", "P", "draw only from tokens at least P times as likely as the likeliest (default 0)"),
        _value("--seed", "N", "seed of all that is drawn: arrivals, prompts, lengths, tokens (default 0)"),
        _value("--prompt-seed", "N", "seed of the prompts alone (default: --seed)"),
        _value("--length-seed", "N", "seed of the lengths alone (default: --seed)"),
        _switch("--no-stop-on-eos", "generate all new tokens, whatever they are"),
        _value("--stop-ids", "N[,N...]", "token ids that end an output; the one that did counts, its text is left out"),
        _value("--stop", "TEXT", "text that ends an output, which is cut before it; may be given several times",
               repeats=True),
        _value("--abort-after-ms", "MS", "the client gives a request up that is not finished so long after it was sent "
               "(default: never)"),
    ),
    "Engine": (
        _value("--engine", "NAME", "native, transformers (its continuous batching, greedy only), null (no model, "
               "scripted service times) or your own as module:factory (default native)"),
        _value("--model", "MODEL", "builtin:gpt2 (GPT-2 small's shape with random weights), builtin:smollm2, a "
               "local folder, a .gguf file or a hub id (default builtin:gpt2)", "--hf-model-id"),
        _value("--device", "DEV", "cpu, cuda or cuda:N (default cpu)"),
        _value("--dtype", "TYPE", "auto, float32, bfloat16 or float16 (default auto: bfloat16 where it is fast)"),
        _value("--max-batch-size", "N", "most requests that run at once (default 16)"),
        _value("--prefill-max-batch-size", "N", "most requests that one step prefills (default 16)"),
        _value("--prefill-max-tokens", "N", "most tokens that one step computes, prompts and decode rows together "
               "(default: the engine's)"),
        _toggle("--chunked-prefill", "cut a prompt that exceeds the tokens of a step into several steps (default on)"),
        _value("--scheduling", "KIND", "prefill_first: decode rows wait while there are prompts to compute; "
               "decode_first: every step serves the decode rows, and prompts with the tokens left (default "
               "prefill_first)"),
        _value("--block-size", "N", "tokens of a KV block (default: the engine's)"),
        _value("--kv-blocks", "N", "KV blocks in all (default: what fits the memory)"),
        _value("--kv-memory", "SIZE", "memory of all KV blocks, such as 800MB or 2GiB, in place of --kv-blocks"),
        _toggle("--prefix-cache", "keep the KV blocks of prompts and use them again for prompts that begin alike; "
                "emptied before every run (default on)", "--no-prefix-cache"),
        _toggle("--paged-attn", "attention over KV blocks in place; off: the plain twin, on a dense copy (default on)"),
        _toggle("--cuda-graph", "replay decode steps as CUDA graphs, captured before the run (default off)"),
        _toggle("--compile", "torch.compile the model before the run (default off)"),
        _toggle("--overlap", "prepare the next step while the device computes (default on with CUDA)"),
        _toggle("--nvtx", "mark steps and their parts for Nsight (default off)"),
        _value("--torch-threads", "N", "threads that torch computes with (default: the engine's cores)"),
    ),
    "Contention in the engine": (
        _value("--switch-interval-ms", "MS", "after so long a waiting thread takes the GIL of the engine's process "
               "from another (default: Python's, 5)"),
        _value("--ingress", "KIND", "thread, or polled: the step loop takes messages between steps (default thread)"),
        _value("--gc", "KIND", "garbage collection in the engine: freeze what is there when it is ready, on as Python "
               "has it, or off (default freeze)"),
        _value("--tokenize-call", "KIND", "encode, which holds the GIL, or encode_batch, which does not (default "
               "encode)"),
        _toggle("--probes", "measure GIL waits, garbage collections, run-queue delays and hiccups (default on)"),
    ),
    "Null engine (only with --engine null)": (
        _value("--null-service-ms", "MS", "service time of a step (default 0)"),
        _value("--null-service", "KIND", "sleep or spin through the service time; ideal: sleep, each service "
               "beginning where the one before ended, so that the capacity is exactly known (default sleep)"),
        _switch("--null-hold-gil", "keep a pure-Python thread spinning in the engine process"),
        _value("--null-start-delay", "S", "seconds before the engine is ready",
               field="null_start_delay_s"),
        _value("--null-crash-at-step", "N", "kill the engine process at this step, the first is 1"),
        _value("--null-hang-at-step", "N", "stop making progress at this step"),
    ),
    "Processes and cores": (
        _value("--topology", "KIND", "separate: the submitter is a process of its own; inproc: a thread of the engine "
               "process that sleeps, the published design, to see what the separation buys (default separate)"),
        _value("--engine-cores", "LIST", "cores of the engine, a taskset list like 0,2-4,8-12:2"),
        _value("--submitter-cores", "LIST", "cores of the submitter; several submitters are dealt them in order"),
        _value("--submitters", "N", "processes that send the load, each every Nth request at its own time (default 1)"),
        _value("--harness-cores", "LIST", "cores of this process"),
        _value("--io-cores", "LIST", "cores of libzmq's I/O threads in all processes (default: the submitter's second "
               "core for its own, elsewhere the process's)"),
        _switch("--rt", "run the pacer under SCHED_FIFO, where that is permitted"),
        _switch("--mlock", "lock the memory of engine and submitter, where that is permitted"),
        _switch("--hold-cpu-latency", "keep the CPUs out of deep sleep (/dev/cpu_dma_latency), where that is "
                "permitted"),
        _value("--collector-dir", "DIR", "where the shared stamps live, best in memory (default /dev/shm)"),
        _value("--start-timeout", "S", "seconds until every process must be ready (default 300)",
               field="start_timeout_s"),
        _value("--stall-timeout", "S", "seconds without an engine step that end the run (default: at least 60, more "
               "where warm-up steps were long)", field="stall_timeout_s"),
        _value("--drain-timeout", "S", "seconds after the last send that end the run (default: none)",
               field="drain_timeout_s"),
    ),
    "Runs": (
        _value("--warmup-runs", "N", "runs before the measured ones, in no figure (default 1)"),
        _value("--warmup-requests", "N", "requests of a warm-up run (default 8)"),
        _value("--repeat-runs", "N", "measured runs (default 1)"),
    ),
    "Output": (
        _value("--out", "DIR", "result folder (default results/RUN_ID)"),
        _switch("--save-outputs", "write outputs.jsonl with the tokens and texts"),
        _value("--slo", "SPEC", "objectives such as ttft=500ms,tpot=50ms@p99 (of ttft, tpot, e2e; the last percentile "
               "counts for those before it, p99 if none): the report then says who kept them, and the goodput"),
        _switch("--allow-invalid", "exit 0 although the verdict is INVALID"),
        _value("--limits", "FILE", "TOML with other limits for checks: a table a check, with warn and invalid"),
        _switch("--verbose", "print the checks that passed or do not apply too"),
        _switch("--quiet", "no progress"),
    ),
}  # fmt: skip


#: Options of the groups Load and Prompts that decide how a load is sent or answered, not what is sent when.
_NOT_OF_PLAN = ("pacer", "wait", "tokenize_workers", "temperature", "top_k", "top_p", "min_p", "stop_on_eos",
                "stop_ids", "stop", "abort_after_ms")  # fmt: skip
PLAN_OUTPUT = (
    _value("--out", "FILE", "keep the plan as a plan file, which `run --plan` and `--trace` take (default: keep none)"),
    _switch("--json", "print one JSON object"),
)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ConfigError in the place of a usage dump, and knows no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS,
                         formatter_class=_formatter)  # fmt: skip

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def parse_all(self, argv: list[str]) -> argparse.Namespace:
        """Parse, and name the first argument that is not known, with the nearest flag. Raises ConfigError."""
        namespace, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("-"):
                raise ConfigError(f"there is no flag {word.partition('=')[0]}{self._nearest(word.partition('=')[0])}")
            raise ConfigError(f"{word!r} is one argument too many")
        return namespace

    def _nearest(self, word: str) -> str:
        return nearest(word, [flag for action in self._actions for flag in action.option_strings])


def nearest(word: str, known: list[str]) -> str:
    """The hint `, did you mean X?`, or nothing where no word in `known` is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else ""


def run_parser(prog: str) -> Parser:
    """The parser of `run`; its namespace holds the given flags only, by `RunConfig` field, as text."""
    parser = Parser(
        prog=f"{prog} run",
        usage=f"{prog} [run] [options]",
        description="Send a planned load to an engine, measure both apart, and say whether the load can be trusted.",
    )
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            add_option(group, option)
    add_help(parser)
    return parser


def plan_parser(prog: str) -> Parser:
    """The parser of `plan`; its namespace is like `run`'s, with `json` beside it."""
    parser = Parser(
        prog=f"{prog} plan",
        usage=f"{prog} plan [load options] [--out FILE] [--json]",
        description="Build the load that `run` would send and describe it, without running anything.",
    )
    for title in ("Load", "Traces", "Prompts"):
        group = parser.add_argument_group(title)
        for option in GROUPS[title]:
            if option.field not in _NOT_OF_PLAN:
                add_option(group, option)
    group = parser.add_argument_group("Engine (whose tokenizer and context count)")
    for option in GROUPS["Engine"]:
        if option.field in ("engine", "model"):
            add_option(group, option)
    group = parser.add_argument_group("Output")
    for option in PLAN_OUTPUT:
        add_option(group, option)
    add_help(parser)
    return parser


def add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    """Add an option, and the spellings that would only be noise in the help."""
    words: dict[str, Any] = {"dest": option.field, "help": option.help}
    if option.toggle:
        group.add_argument(*option.flags, nargs="?", const="on", metavar=option.metavar, **words)
    elif option.metavar:
        action = "append" if option.repeats else "store"
        group.add_argument(*option.flags, metavar=option.metavar, action=action, **words)
    else:
        group.add_argument(*option.flags, action="store_const", const=option.switch_to, **words)
    if option.off_flags:
        off = f"the same as {option.flags[0]} off"
        group.add_argument(*option.off_flags, dest=option.field, action="store_const", const="off", help=off)
    if option.field.endswith("_s"):  # the field's own name works too
        group.add_argument(f"{option.flags[0]}-s", dest=option.field, help=argparse.SUPPRESS)


def add_help(parser: Parser) -> None:
    """-h and --help, in a group at the end."""
    parser.add_argument_group("Help").add_argument("-h", "--help", action="help", help="show this and exit")


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34)
