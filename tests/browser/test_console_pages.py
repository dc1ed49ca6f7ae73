"""Every page of the console in a browser, with real services and real data.

Each test also checks that the page logged no error, violated no policy and asked no other origin.
"""

import re

import pytest
from playwright.sync_api import Browser, expect

from support.browsing import HOSTILE, SHOP, TIP, Visit, World, visit

PAGES = {
    "overview": "/",
    "dags": "/dags",
    "dag": f"/dags/{SHOP}?job=transfers",
    "dag text": f"/dags/{SHOP}?view=text",
    "versions": f"/dags/{SHOP}?view=versions",
    "datasets": "/datasets",
    "dataset": "/datasets/transfers?key=0-9",
    "columns": "/datasets/transfers?view=schema",
    "lineage": "/datasets/transfers?view=lineage",
    "rows": "/datasets/transfers?view=rows",
    "tasks": "/tasks",
    "failures": "/tasks?view=failures",
    "query": "/query#SELECT%201",
    "backfills": "/operations/backfills",
    "pauses": "/operations/pauses",
    "storage": "/operations/storage",
    "users": "/operations/users",
    "keys": "/operations/keys",
}


# --- all pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible(browser: Browser, world: World, scheme: str) -> None:
    with visit(browser, world.url, world.token(), color_scheme=scheme) as admin:
        for path in PAGES.values():
            admin.go(path)
            admin.settle()
            admin.check_accessible()


def test_no_page_is_wider_than_a_phone(browser: Browser, world: World) -> None:
    phone = {"width": 390, "height": 844}
    with visit(browser, world.url, world.token(), viewport=phone, has_touch=True) as admin:
        for name, path in PAGES.items():
            admin.go(path)
            admin.settle()
            width = admin.page.evaluate("document.documentElement.scrollWidth")
            assert width <= phone["width"], name


def test_a_reader_sees_no_button_that_would_be_refused(reader: Visit) -> None:
    verbs = re.compile("Pause|Resume|Retry|Cancel|Invalidate|Promote|Roll back|Sweep|Start|Preview")
    for path in PAGES.values():
        if path == "/operations/users":
            continue  # for admins only
        reader.go(path)
        reader.settle()
        expect(reader.page.locator("main button").filter(has_text=verbs)).to_have_count(0)
    expect(reader.page.get_by_text("rita · reader")).to_be_visible()


def test_a_reader_cannot_act_from_the_page_either(reader: Visit) -> None:
    call = """async ([path, body]) => {
        const csrf = (await (await fetch("/session")).json()).csrf;
        const headers = {"content-type": "application/json", "x-trace-csrf": csrf};
        return (await fetch(path, {method: "POST", headers, body: JSON.stringify(body)})).status;
    }"""
    pause = ["/api/v1/pauses", {"dag": SHOP, "job": "transfers"}]
    assert reader.page.evaluate(call, pause) == 403
    reader.problems.clear()  # the browser logs the refused request


# --- pages ----------------------------------------------------------------------------------------


def test_the_overview_links_to_what_it_counts(admin: Visit) -> None:
    page = admin.page
    admin.go("/")
    expect(page.locator(".banner")).to_contain_text("2 tasks failed permanently")
    expect(page.get_by_role("table", name="Followed chains")).to_contain_text(f"{TIP} / follow")
    page.locator("a.stat").filter(has_text="Failed").click()
    expect(page).to_have_url(re.compile("view=failures"))
    row = page.get_by_role("table", name="Failures by error").get_by_role("row").nth(1)
    expect(row).to_contain_text("transfers")
    row.get_by_role("link", name="2", exact=True).click()
    rows = page.get_by_role("table", name="Tasks, newest first").get_by_role("row")
    expect(rows).to_have_count(3)


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
    expect(page.locator(".diff-del")).to_contain_text("amount > 5")
    expect(page.locator("main li").filter(has_text="alerts")).to_contain_text("changed")
    page.get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("become current immediately")
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
    expect(canvas).to_have_attribute("aria-label", re.compile("blocks 20 to 60"))
    page.keyboard.press("ArrowRight")
    expect(canvas).to_have_attribute("aria-label", re.compile("blocks 28 to 68"))
    page.keyboard.press("0")
    expect(canvas).to_have_attribute("aria-label", re.compile("blocks 0 to (79|80)"))


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


def test_a_wrong_query_says_what_is_wrong(admin: Visit) -> None:
    page = admin.page
    admin.go("/query")
    page.get_by_label("SQL query").fill("SELECT nothing FROM nowhere")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
    admin.problems.clear()  # the browser logs the refused request


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
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Nothing is paused.")).to_be_visible()


# --- manners --------------------------------------------------------------------------------------


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


def test_keys_search_and_go_to_pages(admin: Visit) -> None:
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


def test_the_theme_is_kept(admin: Visit) -> None:
    page = admin.page
    admin.go("/")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("button", name="Theme").click()
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light
