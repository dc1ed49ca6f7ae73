"""Take screenshots of every page of the console: `python tests/browser/screenshots.py DIRECTORY`.

Each page is taken light and dark, at three widths, with the data of the browser tests.
"""

import sys
import tempfile
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.browsing import SHOP, Visit, World, open_browser, open_world, visit
from support.dispatcher import Secrets
from support.postgres import postgres_server

WIDTHS = {
    "wide": {"width": 1440, "height": 900},
    "tablet": {"width": 900, "height": 1000},
    "phone": {"width": 390, "height": 844},
}


def list_pages(world: World) -> dict[str, str]:
    def find_task(**filters: str) -> str:
        return world.get("/v1/tasks", dag=SHOP, job="transfers", **filters)["items"][0]["task_id"]

    return {
        "overview": "/",
        "dags": "/dags",
        "dag": f"/dags/{SHOP}",
        "dag-job": f"/dags/{SHOP}?job=transfers",
        "datasets": "/datasets",
        "dataset": "/datasets/transfers?key=20-29",
        "dataset-lineage": "/datasets/transfers?view=lineage",
        "tasks": "/tasks",
        "failures": "/tasks?view=failures",
        "task": f"/tasks/{find_task(status='Completed')}",
        "task-failed": f"/tasks/{find_task(status='Failed')}",
        "query": "/query",
        "backfills": "/operations/backfills",
        "pauses": "/operations/pauses",
        "storage": "/operations/storage",
        "users": "/operations/users",
    }


def take(visited: Visit, target: Path, pages: dict[str, str], suffix: str) -> None:
    for name, path in pages.items():
        visited.go(path)
        if name == "query":
            visited.page.get_by_label("SQL query").fill(
                "SELECT n, count(*) FROM transfers GROUP BY n"
            )
            visited.page.keyboard.press("Control+Enter")
            visited.page.wait_for_selector("[aria-label='Result']")
        visited.settle()
        visited.page.wait_for_timeout(400)  # a canvas has no event for the end of its drawing
        visited.page.screenshot(path=target / f"{name}-{suffix}.png")


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="trace-shots-") as name,
        postgres_server(Path(name) / "postgres") as templates,
        open_world(
            Secrets.make(Path(name) / "secrets"), templates, Path(name) / "objects"
        ) as world,
        open_browser() as browser,
    ):
        pages = list_pages(world)
        for scheme, (label, size) in product(("light", "dark"), WIDTHS.items()):
            options = {"viewport": size, "color_scheme": scheme}
            with visit(browser, world.url, world.token(), **options) as visited:
                take(visited, target, pages, f"{scheme}-{label}")
    print(f"{len(list(target.glob('*.png')))} screenshots in {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
