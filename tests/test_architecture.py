"""What the documentation says of the structure is so: a reviewer's list of files, and how few a new release touches."""

import ast
import re
from pathlib import Path

import pytest

import pymc_dp.release.curator
from pymc_dp.release import queries
from pymc_dp.release.query import Query

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LIST = re.findall(r"^\| `(pymc_dp/[\w/]+\.py)` \| (.+) \|$", PAGE, re.MULTILINE)


def files_in(text):
    return re.findall(r"`(pymc_dp/[\w/]+\.py)`", text)


def section(path, heading):
    """Return the text below a heading."""
    text = (ROOT / path).read_text()
    assert heading in text
    return text.split(heading, 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("path", [path for path, _ in LIST])
def test_the_files_that_a_reviewer_reads_exist(path):
    assert (ROOT / path).is_file()


def test_the_reviewers_list_is_the_same_everywhere():
    assert files_in(section("CONTRIBUTING.md", "## What a privacy reviewer reads")) == [file for file, _ in LIST]


def test_the_reviewers_page_leads_to_files_of_the_list_and_says_how_many_there_are():
    page = (ROOT / "docs" / "howto" / "review.md").read_text()
    assert files_in(page)
    assert set(files_in(page)) <= {file for file, _ in LIST}
    assert f"{len(LIST)} files" in page


def test_every_file_that_the_page_names_exists():
    for name in re.findall(r"`((?:pymc_dp|docs|tests|tools)/[\w/]+\.\w+)`", PAGE):
        assert (ROOT / name).exists(), name
    picture = PAGE.split("```text", 1)[1].split("```", 1)[0]
    for name in re.findall(r"\b((?:\w+/)*\w+\.py)\b", picture):
        assert (ROOT / "pymc_dp" / name).is_file(), name


def test_the_curators_docstring_names_a_method_that_exists():
    for name in re.findall(r"`(MeteredCurator\.\w+)`", pymc_dp.release.curator.__doc__ + PAGE):
        assert callable(getattr(pymc_dp.release.curator.MeteredCurator, name.split(".")[1]))


ONCE = {("_noise", "add"), ("_meter", "spend")}


def test_only_one_method_adds_noise_and_only_one_pays():
    """A release kind cannot forget either: both stand once, in the curator."""
    called = []
    for path in (ROOT / "pymc_dp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = node.func.value
                if isinstance(of, ast.Attribute) and (of.attr, node.func.attr) in ONCE:
                    called.append((path.name, of.attr))
    assert sorted(called) == [("curator.py", "_meter"), ("curator.py", "_noise")]


def test_every_query_that_is_defined_is_listed():
    def concrete(parent):
        for child in parent.__subclasses__():
            yield from concrete(child)
            if not getattr(child, "__abstractmethods__", None) and child.__module__.startswith("pymc_dp."):
                yield child

    assert set(concrete(Query)) == set(queries.QUERIES)


def imports_of(path):
    """Return the package's modules that a module imports, those for type checkers included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pymc_dp"):
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("pymc_dp"))


def test_no_modules_import_each_other():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / "pymc_dp").rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: {each for each in imports_of(path) if each in modules} for name, path in modules.items()}

    def reached(name):
        found, todo = set(), [name]
        while todo:
            for each in graph[todo.pop()] - found:
                found.add(each)
                todo.append(each)
        return found

    assert not [name for name in modules if name in reached(name)]
