#!/usr/bin/env python3
"""Fails if a link in the pages that mdBook has written leads nowhere: book.py FOLDER"""

import html
import re
import sys
from pathlib import Path


def links(text):
    """The links and pictures of a page's own text, without the frame around it."""
    main = text[text.index("<main>") : text.index("</main>")]
    found = (html.unescape(link) for link in re.findall(r'(?:href|src)="([^"]+)"', main))
    return [link for link in found if "://" not in link]


def faults(folder):
    pages = {page: page.read_text() for page in folder.rglob("*.html")}
    for page, text in pages.items():
        # The pages in one, and a frame.
        if "<main>" not in text or page.name in ("print.html", "404.html"):
            continue
        for link in links(text):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.is_file():
                yield f"{page.relative_to(folder)}: `{link}` leads nowhere"
            elif anchor and f'id="{anchor}"' not in pages[target]:
                yield f"{page.relative_to(folder)}: `{link}`: there is no such heading"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]).resolve()))
    print("\n".join(found) if found else "all links of the book lead somewhere")
    sys.exit(bool(found))
