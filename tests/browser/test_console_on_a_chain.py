"""The console in front of a whole stack with a worker, while a real node replaces blocks.

The other tests of the console play the worker, and run no Spark.
"""

import re

from playwright.sync_api import expect

from support.services.anvil_stack import AnvilStack
from support.services.browsing import open_browser, open_visit
from support.waiting import eventually

_DAG = """
name: chain
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks, hot_transactions, hot_logs]
    config: {start_block: 0, poll_seconds: 0.1}
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks]
    config: {finality: 0}
  - name: fees
    operator: sql
    inputs: [{from: {job: ingest}}]
    outputs: [fees]
    config:
      sql: |
        SELECT block_number,
               gas_price
          FROM blocks
publish:
  - {name: blocks, from: {job: ingest}}
  - {name: heads, from: {job: follow, output: hot_blocks}}
  - {name: fees, from: {job: fees}}
"""


def test_the_console_follows_a_deploy_a_failure_a_reorganisation_a_backfill_and_a_rollback(
    anvil_stack: AnvilStack,
) -> None:
    stack, node = anvil_stack, anvil_stack.node
    node.mine(50, [1, 2])
    link = stack.trace("console").strip()
    with open_browser() as browser, open_visit(browser, link.partition("/login")[0]) as admin:
        page = admin.page
        page.goto(link)
        expect(page.get_by_text("No DAG is deployed yet.")).to_be_visible()

        stack.deploy(_DAG)
        chains = page.get_by_role("table", name="Followed chains")
        expect(chains).to_contain_text("chain / follow")
        expect(chains).to_contain_text("at the head")
        admin.check_accessible()

        stack.trace("trigger", "chain", "request", "--range", "0-39")
        failures = page.get_by_role("table", name="Failures by error")
        expect(failures).to_contain_text("gas_price")
        failures.get_by_role("row").nth(1).click()
        expect(page.locator(".code .pointed")).to_contain_text("gas_price")
        expect(page.get_by_role("heading", name="What it runs")).to_be_visible()
        admin.check_accessible()

        node.reorg(6, [7])
        node.mine(2)
        admin.go("/")
        invalidated = page.get_by_role("table", name="Invalidations")
        expect(invalidated.locator(".tag").first).to_have_text("reorganised")
        expect(chains.locator("a[href^='/operations/invalidations']")).to_have_text("1")
        admin.go("/datasets/heads")
        expect(page.get_by_role("heading", name="heads")).to_be_visible()
        admin.settle()
        admin.check_accessible()

        broken = stack.get("/v1/dags/chain")["dag_version"]
        stack.deploy(_DAG.replace("gas_price", "gas_used"))
        admin.go("/operations/backfills")
        page.get_by_label("Job").select_option("chain/fees")
        page.get_by_label("First block").fill("0")
        page.get_by_label("Last block").fill("39")
        page.get_by_role("button", name="Preview").click()
        expect(page.locator(".fields")).to_contain_text("40")
        page.get_by_role("button", name=re.compile("^Start ")).click()
        row = page.get_by_role("table", name="Backfills").get_by_role("row").nth(1)
        expect(row).to_contain_text("complete")
        admin.go("/datasets/fees")
        canvas = page.locator("canvas.main")
        expect(canvas).to_have_attribute("aria-label", re.compile("40 committed, 0 missing"))

        admin.go("/dags/chain?view=versions")
        expect(page.locator(".diff-add, .diff-del").first).to_contain_text("gas_")
        page.get_by_role("button", name="Roll back").click()
        page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
        expect(page.locator(".toast")).to_contain_text("is current again")
        eventually(lambda: stack.get("/v1/dags/chain")["dag_version"] == broken, "rolled back")
