"""What the README says can be run is run, word for word, and its picture is there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^```\n(.+)\n```$", README, re.MULTILINE)


def test_its_code_runs_without_settings():
    (code,) = re.findall(r"^```python\n(.+?)^```$", README, re.MULTILINE | re.DOTALL)
    made = subprocess.run(  # noqa: S603 as a script of its own: it is not to depend on what a test has imported
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True
    )
    assert "1000 draws" in made.stdout or "4000 draws" in made.stdout
    assert "sable" in made.stdout  # a verdict: usable, or NOT usable


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
    for name in named:
        assert (ROOT / name).is_file(), name
