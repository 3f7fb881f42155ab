"""Sphinx configuration. Build: ``python -m sphinx -W --keep-going -b html docs docs/_build/html``."""

import os
import shutil
from importlib.metadata import distribution, version as installed_version
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
exclude_patterns = ["_build", "_generated/static", "**.ipynb_checkpoints"]

# Pages with code cells are run when the site is built, and an error in one fails the build. The two notebooks are
# stored with their outputs; `.ci/run` and `tools/nightly.sh` execute them by themselves.
nb_execution_mode = "cache"
nb_execution_excludepatterns = ["_generated/*"]
if os.environ.get("PYMC_DP_PAGES") == "few":  # as at every change: of models the page of hierarchies alone
    nb_execution_excludepatterns.append("models/[!h]*")
    # What kernels would say: which language cells are in, and figures for the gallery.
    suppress_warnings = ["myst-nb.lexer", "mystnb.glue_ref"]
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # they would come from a server elsewhere, and no page has widgets
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_ivar = True
default_role = "code"

html_theme = "pydata_sphinx_theme"
html_title = "pymc_dp"
html_theme_options = {
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 5,
    "navigation_depth": 3,
    "show_nav_level": 2,
    "navbar_persistent": ["search-button"],
    "footer_end": [],
}
html_sidebars = {"index": []}
html_static_path = ["_static", "_generated/static"]
html_css_files = ["site.css"]
html_show_sourcelink = False

# Formulas are drawn by MathJax from the built site itself: rooms without a network have no server to get it from. This
# file of it draws glyphs as paths, so that no fonts are loaded either.
mathjax_path = "tex-svg-full.js"
mathjax_options = {"defer": "defer"}


def _copy_mathjax() -> None:
    """Copy MathJax out of the package that brings it."""
    files = distribution("sphinx-mathjax-offline").files or []
    source = next(Path(file.locate()) for file in files if file.name == mathjax_path)
    static = HERE / "_generated" / "static"
    static.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, static / mathjax_path)


def _copy_notebooks() -> None:
    """Copy the notebooks below the source folder, where Sphinx can see them on any file system."""
    generated = HERE / "_generated"
    generated.mkdir(exist_ok=True)
    for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        copy, content = generated / notebook.name, notebook.read_bytes()
        if not copy.exists() or copy.read_bytes() != content:
            copy.write_bytes(content)


_copy_notebooks()
_copy_mathjax()
