"""What the README says can be run is run, word for word."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.slow
def test_its_code_runs_without_settings():
    (code,) = re.findall(r"^```python\n(.+?)^```$", README, re.MULTILINE | re.DOTALL)
    made = subprocess.run(  # noqa: S603 as a script of its own: it is not to depend on what a test has imported
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True
    )
    assert "1000 draws" in made.stdout or "4000 draws" in made.stdout
    assert "sable" in made.stdout  # a verdict: usable, or NOT usable
