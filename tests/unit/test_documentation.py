"""The documentation matches the code, and the code keeps its layout."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trace_etl"
GENERATED = {"cli.md", "operators.md", "task-api.md", "user-api.md"}
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if page.name not in GENERATED
)


def _prose(text: str) -> list[str]:
    """Return the lines outside code blocks and tables."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|"):
            lines.append(line)
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_wraps_at_120_characters(page: Path) -> None:
    assert [line for line in _prose(page.read_text()) if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_the_pages_name_exist(page: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text())
    places = (SOURCE, ROOT)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_each_module_of_a_walk_is_imported_by_one_before_it_or_follows_an_arrow() -> None:
    walk: list[str] = []
    steps, unexplained = 0, list[str]()
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        if line.startswith("## "):
            walk = []
        if re.match(r"\| \d+ \|", line):
            steps += 1
            for arrow, module in re.findall(r"(→ )?`([\w/]+\.py)`", line):
                if walk and not arrow and not _is_reached(module, walk):
                    unexplained.append(module)
                walk.append(module)
    assert steps and unexplained == []


def _is_reached(module: str, walk: list[str]) -> bool:
    """Return whether a module is in the walk, or imported by a module of it."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return module in walk or any(f"trace_etl.{name}" in _read_imports(before) for before in walk)


def _read_imports(module: str) -> set[str]:
    """Return what a module imports: names of modules, and of what it takes from them."""
    nodes = ast.walk(ast.parse((SOURCE / module).read_text()))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    names = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    return names | {str(node.module) for node in froms}


def test_the_architecture_page_names_every_package_and_module_at_the_top() -> None:
    code = (ROOT / "docs" / "architecture.md").read_text().split("## The code")[1]
    packages = [f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")]
    modules = [path.name for path in SOURCE.glob("*.py") if path.name != "__init__.py"]
    named = set(re.findall(r"[a-z_]+(?:/|\.py)", code))
    assert sorted({*packages, *modules} - named) == []


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_each_set_of_values_is_defined_once() -> None:
    places: dict[frozenset[str], list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Subscript)
                and ast.unparse(node.value) == "Literal"
                and isinstance(node.slice, ast.Tuple)
            ):
                values = frozenset(map(ast.unparse, node.slice.elts))
                places.setdefault(values, []).append(f"{path.name}:{node.lineno}")
    assert {values: found for values, found in places.items() if len(found) > 1} == {}


def test_no_folder_has_more_than_fifteen_modules() -> None:
    modules = [*SOURCE.rglob("*.py"), *(ROOT / "tests" / "support").rglob("*.py")]
    sizes = Counter(path.parent for path in modules if path.name[0] != "_")
    assert {str(folder): size for folder, size in sizes.items() if size > 15} == {}


def test_every_module_of_the_benchmarks_is_used_by_another_one() -> None:
    texts = {path.stem: path.read_text() for path in (ROOT / "bench").glob("*.py")}
    unused = [
        name
        for name in texts
        if not name.startswith("__")
        and not any(
            re.search(rf"\bbench\.{name}\b|from bench import .*\b{name}\b", text)
            for other, text in texts.items()
            if other != name
        )
    ]
    assert unused == []
