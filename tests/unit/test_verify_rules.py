"""What is verified: the level and the exceptions of a job, of its RPC pool, and of known chains."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trace_etl.dag.chain.rules import PRESETS, VerifyRules
from trace_etl.dag.operators import IngestConfig
from trace_etl.spark.context import OperatorContext

# What each preset must leave: without these, nothing ties rows to a block.
_ALWAYS = {"links", "log_indices"}


def choose(pool: VerifyRules | None, **config: Any) -> VerifyRules:
    context = SimpleNamespace(
        settings=SimpleNamespace(rpc_rules={} if pool is None else {"default": pool}),
        canceled=Event(),
    )
    return OperatorContext.verify_rules(cast("Any", context), IngestConfig.model_validate(config))


def test_history_is_verified_with_roots_by_default() -> None:
    assert choose(None).level == "roots"
    assert {"transactions_root", "receipts_root", "withdrawals_root"} <= set(choose(None).checks())


def test_the_level_of_a_job_overrides_that_of_its_pool() -> None:
    pool = VerifyRules("bloom", ("polygon",))
    assert choose(pool) == pool
    assert choose(pool, verify="links").level == "links"
    both = choose(pool, exceptions=["gas_price"], verify_senders=True)
    assert both == VerifyRules("bloom", ("polygon", "gas_price"), senders=True)


@pytest.mark.parametrize("level", ["links", "bloom", "roots"])
def test_each_level_includes_the_one_before(level: Any) -> None:
    order = ["links", "bloom", "roots"]
    checks = [set(VerifyRules(cast("Any", name)).checks()) for name in order]
    assert checks[0] < checks[1] < checks[2]
    assert ("logs_bloom" in VerifyRules(level).checks()) == (level != "links")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_recorded_by_its_name_and_skips_only_its_checks(preset: str) -> None:
    rules = choose(None, exceptions=[preset])
    assert rules.exceptions == (preset,)
    skipped = set(VerifyRules().checks()) - set(rules.checks())
    assert skipped == set(PRESETS[preset]) & set(VerifyRules().checks())
    assert set(rules.checks()) >= _ALWAYS
    assert rules.has_state_sync == (preset == "polygon")


def test_an_unknown_exception_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown exception `polygom`; use one of polygon"):
        IngestConfig.model_validate({"exceptions": ["polygom"]})
