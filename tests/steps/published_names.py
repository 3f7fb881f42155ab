"""Names that a result publishes, as docs/reference/statistics.md writes them."""

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "statistics.md"
#: What is published of every kind of release, written with ``X`` for the kind.
ENDINGS = ("_noise_std", "_chain", "_iteration", "_position", "_position_new")


@cache
def named_in_the_page():
    """Return all names in backticks."""
    return frozenset(re.findall(r"`([\w.]+)`", PAGE.read_text()))


def without_step(name):
    """Return a name without the place of its step: `gradient_2` is `gradient`."""
    return re.sub(r"_[1-9](?=$|_noise_std$|_chain$|_iteration$|_position$|_position_new$)", "", name)


def of_releases(name):
    """Return the kind that a variable of the group `releases` is about, and how the page writes the variable."""
    ending = next((each for each in sorted(ENDINGS, key=len, reverse=True) if name.endswith(each)), "")
    return name.removesuffix(ending), f"X{ending}"


def unnamed(tree):
    """Return what a result holds that the page does not name."""
    found = set()
    for group, node in tree.children.items():
        found |= {group, *map(without_step, node.attrs)}
        variables = [str(name) for name in node.data_vars]
        if group.removeprefix("warmup_") in ("sample_stats", "private_likelihood"):
            found |= set(map(without_step, variables))
        if group == "releases":
            stamps = [str(name) for name in node.coords if str(name).endswith(("_chain", "_iteration"))]
            for name in variables + stamps:
                found |= set(of_releases(without_step(name)))
    return found - named_in_the_page()
