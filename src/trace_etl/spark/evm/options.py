"""What `spark.read.format("evm")` may be told. Spark hands option keys over in lower case."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.tables import SCHEMAS

BUNDLE = "bundle"
LINKS = "links"
"""What a bundle may hold beside tables: the hash of each block, and that of its parent."""
_DEFAULT_PARTITION = 1000
_DEFAULT_BLOCKS_PER_BATCH = 1000
_DEFAULT_REORG_DEPTH = 64


@dataclass(frozen=True)
class EvmOptions:
    """A dataset of a range of blocks (inclusive) from a pool of endpoints."""

    source: RpcSource
    dataset: str
    tables: tuple[str, ...]
    start: int
    end: int | None
    """None where the chain is followed."""
    partition_size: int
    blocks_per_batch: int = _DEFAULT_BLOCKS_PER_BATCH
    reorg_depth: int = _DEFAULT_REORG_DEPTH
    starting_offset: Mapping[str, Any] | None = None
    """Where a stream begins that somebody else remembers; None means at `start`."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "EvmOptions":
        """Raises BadTask naming the option."""
        dataset = options.get("dataset", "")
        tables = options.get("tables", "").split(",") if dataset == BUNDLE else [dataset]
        for table in tables:
            if table not in SCHEMAS and (dataset, table) != (BUNDLE, LINKS):
                raise BadTask(
                    f'evm option dataset: must be one of {", ".join(SCHEMAS)}, not "{table}"'
                )
        start, end = _number(options, "start"), None
        if "end" in options:
            end = _number(options, "end")
        if end is not None and end < start:
            raise BadTask(f"evm option end: {end} is before start {start}")
        return cls(
            source=_source(options),
            dataset=dataset,
            tables=tuple(tables),
            start=start,
            end=end,
            partition_size=_number(options, "partition_size", _DEFAULT_PARTITION, least=1),
            blocks_per_batch=_number(
                options, "blocks_per_batch", _DEFAULT_BLOCKS_PER_BATCH, least=1
            ),
            reorg_depth=_number(options, "reorg_depth", _DEFAULT_REORG_DEPTH, least=1),
            starting_offset=_offset(options),
        )


def _offset(options: Mapping[str, str]) -> Mapping[str, Any] | None:
    text = options.get("starting_offset")
    if text is None:
        return None
    try:
        given = json.loads(text)
        number, hashes = int(given["number"]), bytes.fromhex(given["trail"])
        is_whole = len(hashes) % 32 == 0 and hashes[-32:].hex() == given["hash"][2:]
        if number < len(hashes) // 32 - 1 or not hashes or not is_whole:
            raise ValueError
    except (ValueError, TypeError, KeyError) as error:
        raise BadTask("evm option starting_offset: is not an offset of this source") from error
    return given


def _source(options: Mapping[str, str]) -> RpcSource:
    urls = tuple(options.get("rpc_url", "").split())  # the one thing that no URL contains
    if not urls:
        raise BadTask("evm option rpc_url: is missing")
    usual = RpcSource(urls)
    return RpcSource(
        urls,
        batch=_number(options, "batch", usual.batch, least=1),
        concurrency=_number(options, "concurrency", usual.concurrency, least=1),
        timeout=_number(options, "timeout", int(usual.timeout), least=1),
        tries=_number(options, "tries", usual.tries, least=1),
    )


def _number(
    options: Mapping[str, str], name: str, default: int | None = None, *, least: int = 0
) -> int:
    text = options.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.strip().isdecimal() or int(text) < least:
        raise BadTask(f"evm option {name}: must be a whole number from {least} up, not {text!r}")
    return int(text)
