"""Options of `spark.read.format("evm")`. Spark passes option names in lower case."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_etl.dag.chain.rules import LEVELS, Finality, VerifyRules, check_exceptions
from trace_etl.dag.chain.tables import ColumnChoice, find_unknown_columns
from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.fetch import DEFAULT_RULES, RpcSource
from trace_etl.spark.evm.tables import SCHEMAS

BUNDLE = "bundle"
LINKS = "links"
"""A pseudo-table of a bundle: the number, hash and parent hash of each block."""
VERIFIED = "_verified"
"""A pseudo-table of a bundle: what was verified of its blocks, as JSON."""
_DEFAULT_PARTITION = 1000
_DEFAULT_BLOCKS_PER_BATCH = 1000
_DEFAULT_REORG_DEPTH = 64


@dataclass(frozen=True)
class EvmOptions:
    """What to read: tables, an inclusive block range, and the endpoints."""

    source: RpcSource
    dataset: str
    tables: tuple[str, ...]
    start: int
    end: int | None
    """None for a stream."""
    partition_size: int
    blocks_per_batch: int = _DEFAULT_BLOCKS_PER_BATCH
    reorg_depth: int = _DEFAULT_REORG_DEPTH
    rules: VerifyRules = DEFAULT_RULES
    columns: ColumnChoice = "standard"
    finality: Finality = 0
    starting_offset: Mapping[str, Any] | None = None
    """Offset at which a stream resumes; None means at `start`."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "EvmOptions":
        """Parse and check the options. Raises BadTask with the name of a wrong option."""
        dataset = options.get("dataset", "")
        tables = options.get("tables", "").split(",") if dataset == BUNDLE else [dataset]
        for table in tables:
            if table not in SCHEMAS and (dataset, table) != (BUNDLE, LINKS):
                raise BadTask(
                    f'evm option dataset: must be one of {", ".join(SCHEMAS)}, not "{table}"'
                )
        start, end = _parse_number(options, "start"), None
        if "end" in options:
            end = _parse_number(options, "end")
        if end is not None and end < start:
            raise BadTask(f"evm option end: {end} is before start {start}")
        return cls(
            source=_parse_source(options),
            dataset=dataset,
            tables=tuple(tables),
            start=start,
            end=end,
            partition_size=_parse_number(options, "partition_size", _DEFAULT_PARTITION, minimum=1),
            blocks_per_batch=_parse_number(
                options, "blocks_per_batch", _DEFAULT_BLOCKS_PER_BATCH, minimum=1
            ),
            reorg_depth=_parse_number(options, "reorg_depth", _DEFAULT_REORG_DEPTH, minimum=1),
            rules=_parse_rules(options),
            columns=_parse_columns(options, tables),
            finality=_parse_finality(options),
            starting_offset=_parse_offset(options),
        )


def _parse_offset(options: Mapping[str, str]) -> Mapping[str, Any] | None:
    text = options.get("starting_offset")
    if text is None:
        return None
    try:
        offset = json.loads(text)
        number, hashes = int(offset["number"]), bytes.fromhex(offset["trail"])
        is_whole = len(hashes) % 32 == 0 and hashes[-32:].hex() == offset["hash"][2:]
        if number < len(hashes) // 32 - 1 or not hashes or not is_whole:
            raise ValueError
    except (ValueError, TypeError, KeyError) as error:
        raise BadTask("evm option starting_offset: is not an offset of this source") from error
    return offset


def _parse_columns(options: Mapping[str, str], tables: Sequence[str]) -> ColumnChoice:
    text = options.get("columns", "standard")
    if text in ("minimal", "standard", "full"):
        return text
    names = text.replace(",", " ").split()
    unknown = find_unknown_columns([table for table in tables if table != LINKS], names)
    if unknown:
        raise BadTask(
            "evm option columns: must be minimal, standard, full or names of columns, "
            f'not "{unknown[0]}"'
        )
    return tuple(names)


def _parse_finality(options: Mapping[str, str]) -> Finality:
    text = options.get("finality")
    if text == "finalized" or text == "provisional":
        return text
    return _parse_number(options, "finality", 0)


def _parse_rules(options: Mapping[str, str]) -> VerifyRules:
    level = options.get("verify", DEFAULT_RULES.level)
    if level not in LEVELS:
        raise BadTask(f"evm option verify: must be one of {', '.join(LEVELS)}, not {level!r}")
    try:
        exceptions = check_exceptions(options.get("exceptions", "").replace(",", " ").split())
    except ValueError as error:
        raise BadTask(f"evm option exceptions: {error}") from error
    return VerifyRules(level, tuple(exceptions), options.get("verify_senders", "false") == "true")


def _parse_source(options: Mapping[str, str]) -> RpcSource:
    urls = tuple(options.get("rpc_url", "").split())  # URLs never contain white space
    if not urls:
        raise BadTask("evm option rpc_url: is missing")
    defaults = RpcSource(urls)
    return RpcSource(
        urls,
        batch=_parse_number(options, "batch", defaults.batch, minimum=1),
        concurrency=_parse_number(options, "concurrency", defaults.concurrency, minimum=1),
        timeout=_parse_number(options, "timeout", int(defaults.timeout), minimum=1),
        tries=_parse_number(options, "tries", defaults.tries, minimum=1),
        compare_seconds=_parse_number(
            options, "compare_seconds", defaults.compare_seconds, minimum=1
        ),
    )


def _parse_number(
    options: Mapping[str, str], name: str, default: int | None = None, *, minimum: int = 0
) -> int:
    text = options.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.strip().isdecimal() or int(text) < minimum:
        raise BadTask(f"evm option {name}: must be an integer of at least {minimum}, not {text!r}")
    return int(text)
