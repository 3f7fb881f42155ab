"""docs/reference/statistics.md names nothing that the package does not publish; the contract suite has the reverse."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "statistics.md").read_text()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "pymc_dp").rglob("*.py"))
#: Of the first column of each table; names that are put together of a kind and an ending stand in the source apart.
NAMES = sorted(
    {
        name.removesuffix("_noise_std").removeprefix("clip_fraction_").removeprefix("warmup_")
        for row in re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`([a-z_]+)`", row)
    }
)


def test_the_page_has_names():
    assert len(NAMES) > 60


def test_a_name_of_the_page_is_one_of_the_package():
    words = set(re.findall(r"\w+", SOURCE))
    wrong = [name for name in NAMES if name not in words]
    assert not wrong, "\n".join(wrong)
