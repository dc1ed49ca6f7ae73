"""Every page of the console in a browser, with real services and real data.

Each test also checks that the page logged no error, violated no policy and asked no other origin.
"""

import json
import re
from collections.abc import Generator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.dags.pressure import graph
from support.services.browsing import (
    ACTS,
    CASCADE,
    FEED,
    HOSTILE,
    SHOP,
    TIP,
    Visit,
    World,
    create_link,
    open_visit,
    visit,
)
from support.waiting import eventually

PAGES = {
    "overview": "/",
    "dags": "/dags",
    "dag": f"/dags/{SHOP}?job=transfers",
    "pressure": f"/dags/{CASCADE}?job=left",
    "a rollout": f"/dags/{ACTS}?job=rows",
    "dag text": f"/dags/{SHOP}?view=text",
    "versions": f"/dags/{SHOP}?view=versions",
    "rollout": f"/dags/{SHOP}?view=rollout",
    "datasets": "/datasets",
    "dataset": "/datasets/transfers?key=0-9",
    "columns": "/datasets/alerts?view=schema",
    "columns with comments": "/datasets/spikes?view=schema",
    "dataset versions": "/datasets/transfers?view=versions",
    "lineage": "/datasets/transfers?view=lineage",
    "rows": "/datasets/transfers?view=rows",
    "dataset invalidations": "/datasets/volumes?view=invalidations",
    "tasks": "/tasks",
    "tasks of a DAG": f"/tasks?dag={SHOP}&retrying=false",
    "queued tasks of a DAG": f"/tasks?dag={SHOP}&status=Queued",
    "failures": "/tasks?view=failures",
    "query": "/query#SELECT%201",
    "backfills": "/operations/backfills",
    "pauses": "/operations/pauses",
    "outbox": "/operations/outbox",
    "batches": "/operations/batches",
    "invalidations": "/operations/invalidations",
    "checks": "/operations/checks?results=all",
    "events": "/operations/events",
    "notifications": "/operations/notifications",
    "storage": "/operations/storage?unused=all",
    "runtimes": "/operations/runtimes",
    "users": "/operations/users",
    "keys": "/operations/keys",
}


# --- all pages ------------------------------------------------------------------------------------


def list_paths(world: World) -> dict[str, str]:
    """Return all pages, with one task of each state."""
    found = dict(PAGES)
    for status in ("Queued", "Running", "Completed", "Failed"):
        (task, *_) = world.get("/v1/tasks", dag=SHOP, job="transfers", status=status)["items"]
        found[f"task {status}"] = f"/tasks/{task['task_id']}"
    return found


def test_every_page_is_accessible_and_shows_each_role_the_buttons_that_are_not_refused(
    browser: Browser, world: World
) -> None:
    with (
        visit(browser, world.url, world.token()) as admin,
        visit(browser, world.url, world.token("wanda")) as writer,
        visit(browser, world.url, world.token("rita")) as reader,
    ):
        of_admin, of_writer, of_reader = set[str](), set[str](), set[str]()
        for path in list_paths(world).values():
            admin.go(path)
            admin.settle()
            check_schemes(admin)
            admin.check_texts()
            verbs = list_verbs(admin.page)
            if verbs and path != "/operations/users":  # that page is for admins only
                # A reader looks at every page with a button, a writer at those with another one.
                visitors = [
                    (reader, of_reader),
                    *([(writer, of_writer)] if verbs - of_admin else []),
                ]
                for visitor, seen in visitors:
                    visitor.go(path)
                    visitor.settle()
                    seen |= list_verbs(visitor.page)
            of_admin |= verbs
        assert of_admin == _OF_WRITERS | _OF_ADMINS
        assert (of_writer, of_reader) == (_OF_WRITERS, set())
        page = admin.page
        admin.go(f"/dags/{SHOP}")
        page.get_by_role("button", name="Pause all").click()
        expect(page.get_by_role("dialog")).to_contain_text("Events wait")
        check_schemes(admin)
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.keyboard.press("/")
        expect(page.locator(".search-list")).to_contain_text("volumes")
        check_schemes(admin)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_selector("main.login")
        check_schemes(admin)


def check_schemes(visitor: Visit) -> None:
    """Check that the page is accessible in the light scheme, and its contrast in the dark one."""
    visitor.check_accessible()
    visitor.page.emulate_media(color_scheme="dark")
    visitor.check_accessible(rules=("color-contrast",))
    visitor.page.emulate_media(color_scheme="light")


def list_verbs(page: Page) -> set[str]:
    """Return the actions that the page offers, also after a preview."""
    texts = page.locator("main button").all_inner_texts()
    verbs = {re.sub(r" \d+( tasks?)?$", "", text) for text in texts} & _VERBS
    if "Preview" in texts:
        _preview_backfill(page)
        verbs.add("Start")
    return verbs


def test_text_of_users_is_shown_as_text_and_not_as_markup(admin: Visit) -> None:
    written = {
        "/": ".",
        f"/dags/{SHOP}?view=text": ".code",
        f"/dags/{SHOP}?job=transfers": ".panel .code",
        "/datasets/transfers": ".lead",
        "/datasets/alerts?view=schema": "[role=table]",
        "/datasets/spikes?view=schema": "[role=table]",
        f"/tasks?status=Completed&dag={SHOP}&job=transfers": ".fields",
        "/tasks?view=failures": "[role=table]",
        "/operations/outbox": "[role=table]",
        "/operations/batches": "[role=table]",
    }
    for path, selector in written.items():
        admin.go(path)
        admin.settle()
        if selector == ".fields":
            admin.page.locator("[role=row] a.mono").first.click()
        box = admin.page.locator("main" if selector == "." else selector).filter(has_text=HOSTILE)
        expect(box.first).to_be_visible()
        admin.check_texts()


def test_the_test_browser_finds_a_violation_also_after_the_page_was_left(admin: Visit) -> None:
    with admin.expect_problem("style-src"):
        admin.go("/")
        admin.page.evaluate("document.body.setAttribute('style', 'color: red')")
        admin.go("/dags")


_INJECTED = "<img src=x onerror=\"document.title='pwned'\">"
# Appends markup to every string of an answer that users or their code may have chosen, and removes it from requests.
# The others are words of the API that the page compares, ids, times and ranges of blocks.
_INJECT = (
    f"const INJECTED = {json.dumps(_INJECTED)};"
    + """
const FIXED = new Set(["csrf", "role", "next", "status", "state", "kind", "action", "activation", "source_kind", "tier",
  "outcome", "sheds", "write_mode", "trust", "launcher", "event"]);
const PARSED = /^([0-9a-f]{8}-[0-9a-f-]{27}|\\d{4}-\\d\\d-\\d\\dT.*|\\d+-\\d+)$/;
const inject = (value, key) =>
  Array.isArray(value) ? value.map((item) => inject(item, key))
  : value && typeof value === "object"
  ? Object.fromEntries(Object.entries(value).map(([name, item]) => [name, inject(item, name)]))
  : typeof value === "string" && !FIXED.has(key) && !PARSED.test(value) ? value + INJECTED : value;
const quoted = [encodeURIComponent(INJECTED), String(new URLSearchParams([["", INJECTED]])).slice(1)];
const send = window.fetch;
window.fetch = async (url, options = {}) => {
  const clean = quoted.reduce((text, part) => text.replaceAll(part, ""), url);
  const body = options.body?.replaceAll(JSON.stringify(INJECTED).slice(1, -1), "");
  const reply = await send(clean, {...options, body});
  if (!reply.headers.get("content-type")?.includes("json")) return reply;
  return new Response(JSON.stringify(inject(await reply.json())), {status: reply.status, headers: reply.headers});
};
"""
)
_SILENT = {"versions", "rollout", "checks", "notifications", "invalidations"}
"""Pages without a string of a user, because there is nothing to show."""


def test_pages_fit_a_phone_and_show_whatever_users_chose_as_text(
    browser: Browser, world: World
) -> None:
    phone = {"width": 390, "height": 844}
    with visit(browser, world.url, world.token(), viewport=phone, has_touch=True) as admin:
        page = admin.page
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        admin.context.add_init_script(_INJECT)
        for name, path in list_paths(world).items():
            admin.go(path)
            admin.settle()
            if name not in _SILENT:
                expect(page.locator("main").filter(has_text=_INJECTED)).to_be_visible()
            admin.check_texts()
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= phone["width"], name
        page.get_by_role("button", name="Search").click()
        expect(page.locator(".search-list")).to_contain_text(f"{SHOP}{_INJECTED}")
        admin.check_texts()
        admin.go("/datasets")  # a short page for the checks at the end


_OF_WRITERS = {"Pause", "Pause all", "Resume", "Retry", "Cancel", "Cancel all of these", "Drop"} | {
    "Invalidate",
    "Promote",
    "Roll back",
    "Preview",
    "Start",
    "Replay failed",
}
_OF_ADMINS = {"Sweep now", "Enable", "Disable"}
_VERBS = _OF_WRITERS | _OF_ADMINS


def _preview_backfill(page: Page) -> None:
    page.get_by_label("Job").select_option(f"{SHOP}/alerts")
    page.get_by_label("First block").fill("0")
    page.get_by_label("Last block").fill("9")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("button", name=re.compile("^Start 1 task"))).to_be_visible()


def test_a_reader_cannot_act_from_the_page_either(reader: Visit) -> None:
    call = """async ([path, body]) => {
        const csrf = (await (await fetch("/session")).json()).csrf;
        const headers = {"content-type": "application/json", "x-trace-csrf": csrf};
        return (await fetch(path, {method: "POST", headers, body: JSON.stringify(body)})).status;
    }"""
    pause = ["/api/v1/pauses", {"dag": SHOP, "job": "transfers"}]
    with reader.expect_problem("403"):
        assert reader.page.evaluate(call, pause) == 403


# --- pages ----------------------------------------------------------------------------------------


def test_the_overview_links_to_what_it_counts(admin: Visit) -> None:
    page = admin.page
    admin.go("/")
    banner = page.locator(".banner")
    expect(banner).to_contain_text("2 tasks failed permanently")
    expect(banner).to_contain_text("1 batch dead-lettered")
    expect(banner).to_contain_text("no worker is ready for runtime ecs_python")
    expect(banner).to_contain_text("5 jobs paused")
    expect(page.get_by_role("table", name="Followed chains")).to_contain_text(f"{TIP} / follow")
    page.locator(".stat").filter(has_text="Failed").get_by_role("link").first.click()
    expect(page).to_have_url(re.compile("view=failures"))
    row = page.get_by_role("table", name="Failures by error").get_by_role("row").nth(1)
    expect(row).to_contain_text("transfers")
    row.get_by_role("link", name="2", exact=True).click()
    rows = page.get_by_role("table", name="Tasks, newest first").get_by_role("row")
    expect(rows).to_have_count(3)
    admin.go("/")
    page.get_by_role("link", name="2 in the last hour").click()
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Remove this filter").click()
    expect(page).to_have_url(re.compile("status=Failed$"))


def test_an_error_shows_as_text_with_the_line_of_sql(admin: Visit) -> None:
    page = admin.page
    admin.go(f"/tasks?status=Failed&dag={SHOP}")
    page.get_by_role("table").get_by_role("row").nth(1).locator("a.mono").click()
    expect(page.locator(".error-text").first).to_contain_text(HOSTILE)
    expect(page.locator(".code .pointed")).to_contain_text("SELECT block_number, token")
    expect(page.get_by_role("heading", name=re.compile("Log of attempt 1"))).to_be_visible()
    assert "pwned" not in page.title()


def test_a_running_task_is_canceled_with_a_confirmation(admin: Visit, world: World) -> None:
    page = admin.page
    (task, *_) = world.get("/v1/tasks", dag=SHOP, job="transfers", status="Running")["items"]
    admin.go(f"/tasks/{task['task_id']}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("asked to stop with its next heartbeat")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the task").click()
    expect(page.locator(".toast")).to_contain_text("canceled")


def test_the_graph_shows_state_and_opens_jobs(admin: Visit) -> None:
    page = admin.page
    admin.go(f"/dags/{SHOP}")
    expect(page.get_by_role("button", name=re.compile(f"{SHOP} transfers: failed"))).to_be_visible()
    node = page.get_by_role("button", name=re.compile(f"{SHOP} volumes: queued"))
    node.click()
    expect(page.locator(".panel").last).to_contain_text("SELECT token, sum(amount)")
    page.get_by_label("Find a job").fill("split")
    expect(page.locator(".graph .node.dim")).to_have_count(4)
    page.get_by_label("Find a job").fill("")
    page.get_by_role("button", name=re.compile(f"{SHOP} split: ")).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("job=split"))


def test_versions_are_compared_and_rolled_back(admin: Visit, world: World) -> None:
    page = admin.page
    before = world.get(f"/v1/dags/{SHOP}")
    text = before["text"].replace("amount > 1000000", "amount > 5")
    world.post("/v1/dags", {"text": text})
    assert world.get(f"/v1/dags/{SHOP}")["dag_version"] != before["dag_version"]
    admin.go(f"/dags/{SHOP}?view=versions")
    expect(page.locator(".diff-add")).to_contain_text("amount > 5")
    expect(page.locator("main li").filter(has_text="alerts")).to_contain_text("changed")
    page.get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("becomes current immediately")
    dialog.get_by_role("button", name="Roll back").click()
    expect(page.locator(".toast")).to_contain_text("is current again")
    assert world.get(f"/v1/dags/{SHOP}")["dag_version"] == before["dag_version"]


def test_a_click_leads_from_a_partition_to_its_attempt_and_log(admin: Visit) -> None:
    page = admin.page
    admin.go("/datasets/transfers")
    canvas = page.locator("canvas.main")
    expect(canvas).to_have_attribute("aria-label", re.compile("60 committed, 20 missing"))
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] * 0.05, "y": 40})
    expect(page).to_have_url(re.compile("key=0-9"))
    expect(page.get_by_role("heading", name="Partition 0-9")).to_be_visible()
    expect(page.get_by_role("table", name="Outputs made from it")).to_contain_text("volumes")
    block = page.get_by_label("Go to block")
    block.fill("25")
    block.press("Enter")
    expect(page.get_by_role("heading", name="Partition 20-29")).to_be_visible()
    block.fill("4,5")
    block.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Block 45 is not in a partition.")
    page.locator(".stat").filter(has_text="Gaps").get_by_role("link", name="40–59").click()
    expect(canvas).to_have_attribute(
        "aria-label", re.compile("blocks 20 to 79, 40 committed, 20 m")
    )
    page.get_by_role("table", name="Partitions").get_by_role("link", name="0-9").click()
    page.get_by_role("link", name="Open the log").click()
    expect(page.get_by_role("heading", name="transfers 0-9")).to_be_visible()
    expect(page.locator(".timeline")).to_contain_text("#1")


def test_the_map_is_used_with_the_keyboard(admin: Visit) -> None:
    page = admin.page
    admin.go("/datasets/transfers")
    canvas = page.locator("canvas.main")
    expect(canvas).to_have_attribute("aria-label", re.compile("blocks 0 to 79"))
    canvas.focus()
    page.keyboard.press("+")
    expect(canvas).to_have_attribute("aria-label", re.compile("blocks 20 to 59"))
    page.keyboard.press("ArrowRight")
    expect(canvas).to_have_attribute("aria-label", re.compile("blocks 28 to 67"))
    page.keyboard.press("0")
    expect(canvas).to_have_attribute("aria-label", re.compile("blocks 0 to 79"))


def test_a_query_runs_and_hostile_rows_show_as_text(admin: Visit) -> None:
    page = admin.page
    admin.go("/query")
    editor = page.get_by_label("SQL query")
    quoted = HOSTILE.replace("'", "''")
    editor.fill(f"SELECT '{quoted}' AS x, n FROM transfers LIMIT 3")
    page.keyboard.press("Control+Enter")
    table = page.get_by_role("table", name="Result")
    expect(table.get_by_role("row")).to_have_count(4)
    expect(table).to_contain_text(HOSTILE)
    assert "pwned" not in page.title()
    shared = page.url
    page.get_by_role("button", name="Plot").click()
    expect(page.locator(".uplot canvas")).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="CSV").click()
    assert started.value.suggested_filename == "result.csv"
    admin.go("/")
    page.goto(shared)
    expect(editor).to_contain_text("FROM transfers LIMIT 3")


def test_a_wrong_query_shows_its_error(admin: Visit) -> None:
    page = admin.page
    admin.go("/query")
    page.get_by_label("SQL query").fill("SELECT nothing FROM nowhere")
    with admin.expect_problem("status of 4"):
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("nowhere")


def test_an_invalidation_appears_on_the_overview_without_a_reload(
    admin: Visit, world: World
) -> None:
    page = admin.page
    admin.go("/")
    expect(page.get_by_text("No data was invalidated.")).to_be_visible()
    reason = f"reorganisation of 3 blocks at 10 {HOSTILE}"
    world.post("/v1/datasets/volumes/invalidations", {"start": 10, "end": 19, "reason": reason})
    table = page.get_by_role("table", name="Invalidations")
    expect(table).to_contain_text("reorganisation of 3 blocks at 10 <img")
    assert "pwned" not in page.title()


def test_pausing_needs_a_confirmation_and_hostile_reasons_show_as_text(
    admin: Visit, world: World
) -> None:
    page = admin.page
    admin.go(f"/dags/{SHOP}?job=alerts")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert not world.get("/v1/pauses", dag=SHOP)["items"]
    world.post("/v1/pauses", {"dag": SHOP, "job": "alerts", "reason": HOSTILE})
    admin.go("/operations/pauses")
    expect(page.get_by_role("table", name="Pauses")).to_contain_text(HOSTILE)
    assert "pwned" not in page.title()
    row = page.get_by_role("row").filter(has_text=HOSTILE)
    row.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("table", name="Pauses")).not_to_contain_text(HOSTILE)


def test_backpressure_is_shown_on_every_edge_that_holds_it(admin: Visit, world: World) -> None:
    page = admin.page
    admin.go(f"/dags/{CASCADE}")
    expect(page.locator(".edge.held")).to_have_count(5)
    page.get_by_role("button", name=re.compile(f"{CASCADE} left: ")).click()
    panel = page.locator(".panel").last
    expect(panel).to_contain_text("join")
    expect(panel.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    # Only pauses of the page are known: the edges below one of them are found along all ways.
    held = page.evaluate(
        """async () => {
            const script = document.querySelector("script[type=module]").src;
            const {findHeldEdges} = await import(new URL("pages/dag.js", script));
            const edge = (from, to) => ({from_dag: "d", from_job: from, to_dag: "d", to_job: to});
            const edges = [["top", "a"], ["a", "b"], ["a", "c"], ["b", "end"], ["c", "end"], ["x", "end"]];
            const pauses = [{dag: "d", job: "top", by_dag: "d", by_job: "end"}];
            return [...findHeldEdges({edges: edges.map((e) => edge(...e)), pauses})].sort();
        }"""
    )
    assert held == ["d/a>d/b", "d/a>d/c", "d/b>d/end", "d/c>d/end", "d/top>d/a"]


def test_a_pause_by_a_user_with_a_dot_in_the_name_is_resumed(
    browser: Browser, world: World
) -> None:
    with visit(browser, world.url, world.token("ada.lane")) as writer:
        page = writer.page
        writer.go(f"/dags/{FEED}?job=spikes")
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("dialog").get_by_label("Reason").fill(f"maintenance {HOSTILE}")
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(page.locator(".toast")).to_contain_text("Paused 1 job")
        (pause,) = world.get("/v1/pauses", dag=FEED)["items"]
        assert (pause["by"], pause["reason"]) == ("ada.lane", f"maintenance {HOSTILE}")
        page.locator(".panel").last.get_by_role("button", name="Resume").click()
        page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        expect(page.locator(".toast").last).to_contain_text("Resumed")
        assert not world.get("/v1/pauses", dag=FEED)["items"]


def test_failures_are_retried_as_a_group_and_others_are_not_touched(
    admin: Visit, world: World
) -> None:
    page = admin.page
    world.trigger(300, 309)

    def find() -> dict[str, Any] | None:
        return next(
            (t for t in world.queued("transfers", 1) if t["partition_key"] == "300-309"), None
        )

    task = eventually(find, "the task is queued")
    world.fail(task, code=None)
    admin.go("/tasks?view=failures")
    table = page.get_by_role("table", name="Failures by error")
    row = table.get_by_role("row").filter(has_text="without a code")
    row.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("table", name="Tasks, newest first").get_by_role("row")).to_have_count(
        2
    )
    page.go_back()
    row.get_by_role("button", name="Retry 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.locator(".toast")).to_contain_text("1 task will run again")
    assert [f["tasks"] for f in world.get("/v1/failures")["items"]] == [2]
    table.get_by_role("button", name="Retry 2").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("sql_failed")
    dialog.get_by_role("button", name="Cancel").click()


def test_tasks_are_filtered_by_runtime_and_more_are_read_after_a_failure(
    admin: Visit, world: World
) -> None:
    page = admin.page
    wide = graph(world.bench, {"work": "split"}, name="wide")
    wide.trigger(220)
    world.queued("work", 220, "wide")
    admin.go("/tasks?runtime=ecs_python&dag=wide")
    expect(page.get_by_label("Runtime")).to_have_value("ecs_python")
    foot = page.locator(".table-foot")
    expect(foot).to_have_text("200 tasks loaded; scroll for more")
    page.route("**/api/v1/tasks?*after=*", lambda route: route.fulfill(status=503))
    to_end = "document.querySelector('.table-scroll').scrollTo(0, 1e6)"
    with admin.expect_problem("503"):
        page.evaluate(to_end)
        expect(page.locator(".toast")).to_contain_text("HTTP 503")
    page.unroute("**/api/v1/tasks?*after=*")
    page.evaluate("document.querySelector('.table-scroll').scrollTo(0, 0)")
    page.evaluate(to_end)
    expect(foot).to_have_text("220 tasks loaded")
    page.get_by_label("Runtime").fill("dispatcher")
    page.keyboard.press("Enter")
    expect(foot).not_to_have_text("220 tasks loaded")
    admin.go("/tasks?dag=wide&job=work")
    page.get_by_role("button", name="Cancel all of these").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("220 waiting tasks will not start")
    dialog.get_by_role("button", name="Cancel the tasks").click()
    expect(page.locator(".toast").last).to_contain_text("220 tasks canceled")
    assert not world.get("/v1/tasks", dag="wide", status="Queued")["items"]
    world.post("/v1/dags/wide/remove", {})


def test_an_error_of_a_window_of_the_map_is_shown(admin: Visit) -> None:
    page = admin.page
    admin.go("/datasets/transfers")
    canvas = page.locator("canvas.main")
    expect(canvas).to_have_attribute("aria-label", re.compile("60 committed"))
    page.route("**/map?*start=*", lambda route: route.fulfill(status=503))
    with admin.expect_problem("503"):
        canvas.focus()
        page.keyboard.press("+")
        expect(page.get_by_role("alert")).to_contain_text("503")
    page.unroute("**/map?*start=*")
    page.keyboard.press("-")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_link_to_a_log_scrolls_to_it(browser: Browser, world: World) -> None:
    small = {"width": 1000, "height": 400}
    with visit(browser, world.url, world.token(), viewport=small) as admin:
        admin.go("/datasets/transfers?key=0-9")
        admin.page.get_by_role("link", name="Open the log").click()
        expect(admin.page.get_by_role("log")).to_contain_text(f"reads 0-9 {HOSTILE}")
        expect(admin.page.get_by_role("log")).to_be_in_viewport()


def test_a_new_version_is_built_promoted_and_rolled_back(admin: Visit, world: World) -> None:
    page = admin.page
    before = world.get(f"/v1/dags/{SHOP}")
    old = world.get("/v1/datasets/transfers")["dataset_version"]
    world.post("/v1/dags", {"text": before["text"].replace("receiver, amount", "amount")})
    admin.go(f"/dags/{SHOP}")
    expect(page.locator(".banner")).to_contain_text("Rolling out")
    admin.go(f"/dags/{SHOP}?view=rollout")
    expect(page.get_by_role("table", name="Datasets of the rollout")).to_contain_text("transfers")
    page.get_by_role("button", name="Promote").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("110 blocks of them are not built yet")
    dialog.get_by_role("button", name="Promote").click()
    expect(page.locator(".toast")).to_contain_text("The new version is current.")
    # Readers see an empty dataset now. The version before it still has its partitions.
    admin.go("/datasets/transfers")
    expect(page.get_by_text("No partition is committed yet.")).to_be_visible()
    page.get_by_label("Version", exact=True).select_option(old)
    table = page.get_by_role("table", name="Partitions")
    expect(table.get_by_role("row")).to_have_count(7)
    table.get_by_role("link", name="20-29").click()
    expect(page.get_by_role("heading", name="Partition 20-29")).to_be_visible()
    expect(page).to_have_url(re.compile(old))
    expect(page.get_by_role("table", name="Outputs made from it")).to_contain_text("volumes")
    admin.go("/datasets/transfers?view=lineage")
    page.get_by_label("As of version").select_option(old)
    expect(page.get_by_role("button", name=re.compile("volumes, written by"))).to_be_visible()
    admin.go(f"/dags/{SHOP}")
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.locator(".toast")).to_contain_text("is current again")
    assert world.get(f"/v1/dags/{SHOP}")["dag_version"] == before["dag_version"]


def test_failed_deliveries_are_replayed_retried_or_dropped(admin: Visit, world: World) -> None:
    page = admin.page
    admin.go("/operations/outbox")
    page.get_by_role("button", name="Replay failed").click()
    expect(page.get_by_role("dialog")).to_contain_text("Replay 1 side effect?")
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    expect(page.locator(".toast")).to_contain_text("1 are tried again")
    admin.go("/operations/batches")
    row = page.get_by_role("row").filter(has_text=HOSTILE)
    row.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(row).to_have_count(0)
    (batch, *_) = world.get("/v1/batches")["items"]
    world.bench.rows(
        "UPDATE buffer_publishes SET failed_at = now(), error_code = 'x', error_message = 'gone'"
        " WHERE publish_id = %s",
        batch["publish_id"],
    )
    admin.go("/operations/batches")
    page.get_by_role("row").filter(has_text="gone").get_by_role("button", name="Drop").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    left = [item["publish_id"] for item in world.get("/v1/batches")["items"]]
    assert batch["publish_id"] not in left


def test_a_large_graph_is_laid_out_without_a_worker(admin: Visit, world: World) -> None:
    page = admin.page
    jobs = {f"j{i}": "split" if i < 4 else f"j{i - 4}" for i in range(260)}
    graph(world.bench, jobs, name="deep")
    workers: list[str] = []
    page.on("worker", lambda worker: workers.append(worker.url))
    admin.go("/dags/deep")
    page.get_by_label("Find a job").fill("j259")
    node = page.get_by_role("button", name=re.compile("deep j259: "))
    expect(node).to_be_in_viewport()
    assert not workers
    inputs = page.locator(".graph .edge")
    expect(inputs.first).to_be_attached()
    world.post("/v1/dags/deep/remove", {})


def test_the_editor_completes_keeps_a_history_and_downloads_parquet(admin: Visit) -> None:
    page = admin.page
    admin.go("/query")
    editor = page.get_by_label("SQL query")
    editor.focus()
    page.keyboard.type("SELECT n FROM transf")
    option = page.get_by_role("option", name=re.compile("transfers"))
    option.first.click()
    expect(editor).to_contain_text("FROM transfers")
    page.keyboard.type(" LIMIT 2")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("table", name="Result").get_by_role("row")).to_have_count(3)
    with page.expect_download() as started:
        page.get_by_role("button", name="Parquet").click()
    assert started.value.path().read_bytes()[:4] == b"PAR1"
    editor.focus()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    expect(editor).not_to_contain_text("transfers")
    page.locator(".history button").first.click()
    expect(editor).to_contain_text("FROM transfers")
    page.reload()
    expect(page.locator(".history button").first).to_contain_text("FROM transfers LIMIT 2")


# --- login ----------------------------------------------------------------------------------------


@pytest.fixture
def stranger(browser: Browser, world: World) -> Generator[Visit]:
    with open_visit(browser, world.url) as made:
        yield made


def test_a_link_opens_the_page_once_and_leaves_no_code(stranger: Visit, world: World) -> None:
    page = stranger.page
    first = create_link(world.url, world.token("rita"))
    page.goto(first)
    expect(page.get_by_text("rita · reader")).to_be_visible()
    expect(page).to_have_url(f"{world.url}/")
    # With an open session, a link of another user changes the user.
    page.goto(create_link(world.url, world.token("wanda")))
    expect(page.get_by_text("wanda · writer")).to_be_visible()
    expect(page).to_have_url(f"{world.url}/")
    with stranger.expect_problem("401"):
        page.goto(first)
        expect(page.locator(".toast")).to_contain_text("this link was used")
    expect(page.get_by_text("wanda · writer")).to_be_visible()
    page.goto(f"{world.url}/login")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_used_link_is_reported_and_a_token_logs_in(stranger: Visit, world: World) -> None:
    page = stranger.page
    with stranger.expect_problem("401"):
        page.goto(f"{world.url}/login#nonsense")
        expect(page.get_by_role("alert")).to_contain_text("trace console")
    assert "nonsense" not in page.url
    page.get_by_label(re.compile("paste a token")).fill(world.token("rita"))
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("rita · reader")).to_be_visible()


def test_an_open_page_acts_after_another_tab_logged_in_again(admin: Visit, world: World) -> None:
    page = admin.page
    admin.go("/operations/storage")
    second = admin.context.new_page()
    admin.watch(second)
    second.goto(create_link(world.url, world.token()))
    expect(second.get_by_role("heading", name="Overview")).to_be_visible()
    with admin.expect_problem("403"):
        page.get_by_role("button", name="Sweep now").click()
        page.get_by_role("dialog").get_by_role("button", name="Sweep").click()
        expect(page.locator(".toast")).to_contain_text("deleted")


def test_an_ended_session_is_reported_and_a_login_in_another_tab_opens_the_page_again(
    admin: Visit, world: World
) -> None:
    page = admin.page
    admin.go("/datasets")
    admin.context.clear_cookies()
    with admin.expect_problem("401"):
        page.get_by_role("link", name="Operations").click()
        expect(page.get_by_role("alert")).to_contain_text("Your session has ended.")
    second = admin.context.new_page()
    admin.watch(second)
    second.goto(create_link(world.url, world.token()))
    expect(second.get_by_role("heading", name="Overview")).to_be_visible()
    page.bring_to_front()
    page.evaluate("dispatchEvent(new Event('focus'))")  # windows of a test are always focused
    expect(page.get_by_role("heading", name="Operations")).to_be_visible()


def test_a_page_names_the_service_that_does_not_answer_and_returns(admin: Visit) -> None:
    page = admin.page
    page.route("**/session", lambda route: route.fulfill(status=503))
    with admin.expect_problem("503"):
        page.goto(f"{admin.url}/datasets")
        expect(page.get_by_role("heading", name="The stack does not answer")).to_be_visible()
        page.unroute("**/session")
        expect(page.get_by_role("heading", name="Datasets", exact=True)).to_be_visible()


# --- tabs, keys and the theme ---------------------------------------------------------------------


def test_pages_are_read_again_after_a_gap_in_the_stream(admin: Visit, world: World) -> None:
    admin.go("/")
    second = admin.context.new_page()
    admin.watch(second)
    second.goto(f"{admin.url}/tasks?dag={SHOP}&job=request")
    expect(second.locator(".dot.live")).to_be_visible()
    expect(second.get_by_role("row")).not_to_have_count(0)
    rows = second.get_by_role("row").count()
    admin.context.route("**/api/v1/changes", lambda route: route.fulfill(status=503))
    with admin.expect_problem("503"):
        admin.page.close()  # this tab read the stream for both
        admin.page = second
        expect(second.locator(".dot.offline")).to_be_visible()
        expect(second.get_by_role("alert")).to_contain_text("what you see may be old")
        world.trigger(210, 219)
    admin.context.unroute("**/api/v1/changes")
    expect(second.get_by_role("row")).not_to_have_count(rows)
    expect(second.get_by_role("alert")).to_have_count(0)


def test_tabs_share_one_stream_and_both_are_live(admin: Visit, world: World) -> None:
    second = admin.context.new_page()
    admin.watch(second)
    for page in (admin.page, second):
        page.goto(f"{admin.url}/tasks?dag={SHOP}&job=request")
        expect(page.locator(".dot.live")).to_be_visible()
        expect(page.get_by_role("row")).not_to_have_count(0)
    rows = admin.page.get_by_role("row").count()
    streams = [url for url in admin.requests if url.endswith("/api/v1/changes")]
    opened = len(streams)
    world.trigger(200, 209)
    for page in (admin.page, second):
        expect(page.get_by_role("row")).not_to_have_count(rows)
    streams = [url for url in admin.requests if url.endswith("/api/v1/changes")]
    assert len(streams) == opened, "a tab opened another stream"


def test_keys_open_the_search_and_the_pages(admin: Visit) -> None:
    page = admin.page
    admin.go("/")
    page.keyboard.press("/")
    page.get_by_label(re.compile("^Search pages")).fill("volumes")
    expect(page.locator(".search-list a").first).to_contain_text("dataset")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/datasets/volumes"))
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page).to_have_url(re.compile("/tasks$"))
    page.keyboard.press("q")  # `g` counts once
    page.keyboard.press("g")
    page.keyboard.press("x")
    page.keyboard.press("q")
    page.reload()
    page.wait_for_selector("main h1")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="Tasks", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile("/tasks$"))


def test_the_theme_is_kept(admin: Visit) -> None:
    page = admin.page
    admin.go("/")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("button", name="Theme").click()
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light
