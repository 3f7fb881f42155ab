"""The table of hazards in the documentation names every hazard, and tests that exist and say which hazard they see."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "attacks.md").read_text()
ROW = re.compile(r"^\| (H\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HAZARDS = {number: (hazard, cell) for number, hazard, cell in ROW.findall(PAGE)}
NAMED = [(number, *test) for number, (_, cell) in HAZARDS.items() for test in TEST.findall(cell)]


@cache
def sources(path):
    """Return the source of each test function of a file."""
    text = (ROOT / path).read_text()
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(text, node) for node in found}


def test_every_hazard_is_in_the_table_once():
    assert [number for number, _, _ in ROW.findall(PAGE)] == [f"H{number}" for number in range(1, 51)]


@pytest.mark.parametrize("number", HAZARDS)
def test_a_hazard_has_a_test_or_a_reason(number):
    _, cell = HAZARDS[number]
    without_tests = TEST.sub("", cell).replace("<br>", "").strip()
    assert TEST.search(cell) or without_tests.startswith("Does not apply")
    assert "::" not in without_tests  # else a test is written in a way that nobody checks


@pytest.mark.parametrize(("number", "path", "name"), NAMED)
def test_the_tests_of_a_hazard_exist_and_name_it(number, path, name):
    assert name in sources(path)
    assert re.search(rf"\b{number}\b", sources(path)[name])


def test_tests_that_name_a_hazard_are_in_its_line():
    for path in sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")):
        if (ROOT / path) == Path(__file__):
            continue
        for name, source in sources(path).items():
            docstring = ast.get_docstring(ast.parse(source).body[0]) or ""
            for number in re.findall(r"\bH\d+\b", docstring):
                assert (number, path, name) in NAMED
