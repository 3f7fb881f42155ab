"""The conda recipe installs what pyproject.toml says, from the sdist."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RECIPE = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())


def bounds(texts):
    """Return the bounds of each name, of requirements as pip or as conda writes them."""
    parsed = [Requirement(text) for text in texts]
    return {each.name: each.specifier for each in parsed if each.marker is None}


def in_recipe(part):
    known = RECIPE["context"]["python_min"]
    return [text.replace("${{ python_min }}", known) for text in RECIPE["requirements"][part]]


def test_the_recipe_requires_what_pyproject_requires():
    project = PYPROJECT["project"]
    wanted = bounds([*project["dependencies"], "python" + project["requires-python"]])
    assert len(wanted) > 5
    assert bounds(in_recipe("run")) == wanted
    # Bounds of one version of Python, which the recipe leaves out, are of names that it has.
    assert {Requirement(text).name for text in project["dependencies"]} < set(wanted)


def test_the_recipe_builds_with_what_pyproject_builds_with():
    python, pip, *others = in_recipe("host")
    assert (python, pip) == (f"python {RECIPE['context']['python_min']}.*", "pip")
    assert bounds(others) == bounds(PYPROJECT["build-system"]["requires"])


def test_the_recipe_is_of_this_version_and_builds_its_sdist():
    project, version = PYPROJECT["project"], RECIPE["context"]["version"]
    assert version == project["version"]
    assert RECIPE["about"]["license"] == project["license"]
    assert RECIPE["about"]["summary"] == project["description"]
    assert RECIPE["source"]["path"] == f"../../dist/{project['name']}-${{{{ version }}}}.tar.gz"
    used = [name for test in RECIPE["tests"] for name in test.get("files", {}).get("source", [])]
    sdist = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all((ROOT / name).is_file() and name.split("/")[0] in sdist for name in used)
