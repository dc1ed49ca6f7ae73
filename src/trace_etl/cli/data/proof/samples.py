"""Compare sampled partitions with the chain."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trace_etl.api.proof.certificates import StoredCertificate
    from trace_etl.proof.checks import Problem


def compare_with_chain(certificate: "StoredCertificate", url: str) -> "list[Problem]":
    """Read the blocks of a partition again and compare the hash of their rows."""
    from trace_etl.dag.chain.rules import VerifyRules
    from trace_etl.model.errors import TraceError
    from trace_etl.proof.checks import Problem
    from trace_etl.spark.evm.comparison import find_table, hash_chain_rows
    from trace_etl.spark.evm.fetch import DEFAULT_RULES

    columns, key = [column["name"] for column in certificate.columns], certificate.partition_key
    table = find_table(columns)
    if table is None or certificate.start is None or certificate.end is None:
        text = "its rows are not rows of a chain"
        return [Problem(key, "chain", text)]
    verified = certificate.verified
    rules = VerifyRules(verified.level, tuple(verified.exceptions)) if verified else DEFAULT_RULES
    try:
        found = hash_chain_rows(url, table, columns, certificate.start, certificate.end, rules)
    except TraceError as error:
        return [Problem(key, "chain", f"cannot be read from the endpoint: {error}")]
    if (found.rows, found.content_hash) == (certificate.row_count, certificate.content_hash):
        return []
    text = (
        f"the certificate has {certificate.row_count} rows with {certificate.content_hash}, the chain "
        f"has {found.rows} rows with {found.content_hash}"
    )
    return [Problem(key, "chain", text)]
