"""What stands in several files: the version is the same in all of them, and tests that a script names exist."""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_citation_and_changelog_have_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    latest = re.search(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited is not None
    assert latest is not None
    described = json.loads((ROOT / "codemeta.json").read_text())["version"]
    assert version == cited[1] == latest[1] == described


def test_the_quick_tests_of_other_versions_exist():
    named = re.findall(r"^  (tests/\S+)$", (ROOT / ".ci" / "versions").read_text(), re.MULTILINE)
    assert named
    for each in named:
        path, _, test = each.partition("::")
        assert (ROOT / path).exists(), each
        assert not test or f"def {test}(" in (ROOT / path).read_text(), each
