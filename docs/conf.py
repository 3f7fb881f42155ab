"""Sphinx configuration. Build: ``python -m sphinx -W --keep-going -b html docs docs/_build/html``."""

from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent

project = "pymc_dp"
author = "the pymc_dp contributors"
copyright = author
release = version = installed_version("pymc_dp")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

# The notebook is stored with its outputs; the build shows them and runs nothing.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_ivar = True
default_role = "code"

html_theme = "pydata_sphinx_theme"
html_title = "pymc_dp"
html_theme_options = {"show_prev_next": True, "secondary_sidebar_items": ["page-toc"]}
html_show_sourcelink = False


def _copy_notebooks() -> None:
    """Copy the notebooks below the source folder, where Sphinx can see them on any file system."""
    generated = HERE / "_generated"
    generated.mkdir(exist_ok=True)
    for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        copy, content = generated / notebook.name, notebook.read_bytes()
        if not copy.exists() or copy.read_bytes() != content:
            copy.write_bytes(content)


_copy_notebooks()
