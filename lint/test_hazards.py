"""The table of hazards in the documentation names every hazard, and tests that exist and say which hazard they see."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "attacks.md").read_text()
ROW = re.compile(r"^\| (H\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HAZARDS = {number: (hazard, cell) for number, hazard, cell in ROW.findall(PAGE)}
NAMED = [(number, *test) for number, (_, cell) in HAZARDS.items() for test in TEST.findall(cell)]


@cache
def sources(path):
    """Return the docstring and the source of each test function of a file; of none where there is no such file."""
    if not (ROOT / path).is_file():
        return {}
    text = (ROOT / path).read_text()
    # `ast.get_source_segment` splits the whole text anew for each function.
    lines = text.splitlines(keepends=True)
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {
        node.name: (ast.get_docstring(node) or "", "".join(lines[node.lineno - 1 : node.end_lineno])) for node in found
    }


def test_every_hazard_is_in_the_table_once():
    assert [number for number, _, _ in ROW.findall(PAGE)] == [f"H{number}" for number in range(1, 54)]


def test_a_hazard_has_a_test_or_a_reason():
    wrong = []
    for number, (_, cell) in HAZARDS.items():
        without_tests = TEST.sub("", cell).replace("<br>", "").strip()
        if not TEST.search(cell) and not without_tests.startswith("Does not apply"):
            wrong.append(f"{number} has neither a test nor a reason")
        if "::" in without_tests:
            wrong.append(f"{number} names a test in a way that nobody checks: {without_tests}")
    assert not wrong, "\n".join(wrong)


def test_the_tests_of_a_hazard_exist_and_name_it():
    wrong = []
    for number, path, name in NAMED:
        if name not in sources(path):
            wrong.append(f"{number}: there is no {path}::{name}")
        elif not re.search(rf"\b{number}\b", sources(path)[name][1]):
            wrong.append(f"{number}: {path}::{name} does not name it")
    assert not wrong, "\n".join(wrong)


def test_tests_that_name_a_hazard_are_in_its_line():
    wrong = []
    for path in sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")):
        for name, (docstring, _) in sources(path).items():
            for number in re.findall(r"\bH\d+\b", docstring):
                if (number, path, name) not in NAMED:
                    wrong.append(f"{path}::{name} is not in the line of {number} in docs/attacks.md")
    assert not wrong, "\n".join(wrong)
