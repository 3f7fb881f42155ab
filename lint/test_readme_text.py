"""The README's commands are those that CI runs, and the files that it names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^```\n(.+)\n```$", README, re.MULTILINE)


def test_there_are_two_commands_and_ci_runs_the_tests_by_the_second():
    assert COMMANDS == [
        "python -m pip install -q uv && python -m uv run python -m pymc_dp",
        "python -m pip install -q uv && python -m uv run pytest",
    ]
    assert COMMANDS[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def test_its_files_exist():
    named = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    named += re.findall(r"`((?:docs|tests|benchmarks)/[\w/]+\.\w+)`", README)
    assert len(named) >= 3
    wrong = [name for name in named if not (ROOT / name).is_file()]
    assert not wrong, "\n".join(wrong)
