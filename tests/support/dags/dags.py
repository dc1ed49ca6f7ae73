"""DAG files for tests."""

QUICKSTART = """
name: quickstart
jobs:
  - name: request
    activation: source
    source: {kind: manual}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [ranges]
    config: {size: 100}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: split}}]
    outputs: [blocks, transactions, logs]
  - name: receivers
    operator: sql
    inputs: [{from: {job: ingest, output: logs}}]
    outputs: [receivers]
    config: {sql: "SELECT topic2 AS receiver, count(*) AS n FROM logs GROUP BY topic2"}
publish:
  - {name: blocks, from: {job: ingest, output: blocks}}
  - {name: receivers, from: {job: receivers}}
"""
