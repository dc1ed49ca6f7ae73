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

FOLLOWER = """
name: {name}
jobs:
  - name: follow
    operator: block_follower
    activation: source
    source: {{kind: always_on}}
    outputs: [hot_blocks]
    config: {{rpc: default}}
"""
HOT_AND_COMPACTED = """
name: {name}
jobs:
  - {{name: follow, activation: source, source: {{kind: always_on}}, operator: block_follower,
     outputs: [hot_blocks]}}
  - {{name: wide, operator: range_aggregator, inputs: [{{from: {{job: follow}}}}], outputs: [ranges],
     config: {{size: 10}}}}
  - {{name: compact, operator: parquet_compact, inputs: [{{from: {{job: wide}}}}, {{from: {{job: follow}}}}],
     outputs: [blocks], config: {{size: 10, finality_depth_blocks: 0}}}}
publish:
  - {{name: {name}_hot, from: {{job: follow}}}}
  - {{name: {name}_all, from: {{job: compact}}, hot: {{job: follow, output: hot_blocks}}}}
"""
