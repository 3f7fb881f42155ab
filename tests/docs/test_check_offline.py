"""The check of the built site sees what a page would load from a network, and nothing else."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from check_offline import loaded_from_elsewhere


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/mathjax.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<link rel="preload stylesheet" href="https://fonts.example/css">',
        '<img src="http://elsewhere.example/a.png">',
        '<iframe src="https://elsewhere.example"></iframe>',
        "<style>@import 'https://fonts.example/a.css';</style>",
        "<style>@font-face {src: url(https://fonts.example/a.woff2)}</style>",
        '<p style="background: url(//elsewhere.example/a.png)"></p>',
    ],
)
def test_what_comes_from_a_network_is_found(tmp_path, text):
    (tmp_path / "page.html").write_text(f"<html><body>{text}</body></html>")
    assert len(list(loaded_from_elsewhere(tmp_path))) == 1


def test_styles_are_looked_into(tmp_path):
    (tmp_path / "site.css").write_text("@font-face {src: url('https://fonts.example/a.woff2')}")
    assert [address for _, address in loaded_from_elsewhere(tmp_path)] == ["https://fonts.example/a.woff2"]


def test_the_sites_own_files_and_links_are_free(tmp_path):
    (tmp_path / "page.html").write_text(
        '<link rel="canonical" href="https://docs.example/"><script src="_static/a.js"></script>'
        '<a href="https://elsewhere.example">a paper</a><img src="data:image/png;base64,AAAA">'
    )
    (tmp_path / "site.css").write_text("@font-face {src: url('../webfonts/a.woff2')}")
    assert not list(loaded_from_elsewhere(tmp_path))
