"""Check that a built site can be read without a network: `python docs/check_offline.py docs/_build/html`.

Scripts, styles, fonts, pictures and frames have to come from the site itself; links that a reader may follow are free.
Prints what does not, and ends with 1 if there is any.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

#: Attributes by which a page loads something at once.
LOADED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src",),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
}
#: Relations of <link> that load nothing.
NAMED_ONLY = {"canonical", "next", "prev", "search", "index", "author", "help", "license"}
ELSEWHERE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"(?:url\(|@import\s+)\s*['\"]?((?:https?:)?//[^'\")\s;]+)", re.IGNORECASE)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and NAMED_ONLY.intersection(values.get("rel", "").split()):
            return
        self.found += [values[name] for name in LOADED.get(tag, ()) if ELSEWHERE.match(values.get(name, ""))]
        self.found += IN_STYLES.findall(values.get("style", ""))


def loaded_from_elsewhere(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file of a site with an address that it would load from a network.

    Parameters
    ----------
    site : Path
        Folder of the built site.
    """
    for path in sorted(site.rglob("*.html")):
        text = path.read_text()
        page = _Page()
        page.feed(text)
        styles = "".join(re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL))
        for address in (*page.found, *IN_STYLES.findall(styles)):
            yield path, address
    for path in sorted(site.rglob("*.css")):
        for address in IN_STYLES.findall(path.read_text()):
            yield path, address


def main() -> int:
    """Print what is loaded from elsewhere; return 1 if anything is, or if there is no site."""
    site = Path(sys.argv[1])
    pages = len(list(site.rglob("*.html")))
    found = list(loaded_from_elsewhere(site))
    for path, address in found:
        print(f"{path}: {address}")
    print(f"{pages} pages, {len(found)} files from elsewhere")
    return int(bool(found) or pages == 0)


if __name__ == "__main__":
    sys.exit(main())
