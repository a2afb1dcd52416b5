#!/usr/bin/env python3
"""Counts the public types whose documentation has an example, and the entry points that an example calls, in what `cargo doc`
has written. Fails if too few types of a crate have one, or if an entry point is called in none.

use: examples.py FOLDER CRATE...   (FOLDER has a folder for each crate)

What a crate shows of other crates does not count.
A type has an example if its page has one, at the type or at one of its functions. An enum whose variants have no data is not
counted, since an example of it could only compare constants. An entry point makes something from nothing: a free function, or
one of a type that takes no `self` and returns the type. It is called as `Type::function(` or `function(`."""

import html
import re
import sys
from pathlib import Path

LEAST_SHARE = 0.75
EXAMPLE = re.compile(r'<pre class="rust rust-example-rendered"><code>(.*?)</code></pre>', re.S)
METHOD = re.compile(r'<section id="method\.\w+" class="method">.*?<h4 class="code-header">(.*?)</h4>', re.S)
# What others implement, and what the compiler gives, is no part of the type's own page.
OWN = re.compile(r'<h2 id="(?:trait|synthetic|blanket)-implementations"')
DECLARATION = re.compile(r'<pre class="rust item-decl"><code>(.*?)</code></pre>', re.S)
SOURCE = re.compile(r'class="src[^"]*" href="(?:\.\./)*src/(\w+)/')


def plain(text):
    return html.unescape(re.sub(r"<[^>]*>", "", text))


def own_part(page):
    found = OWN.search(page)
    return page[: found.start()] if found else page


def entry_points(name, page):
    """The functions of the type `name` that make one from nothing."""
    for header in METHOD.findall(own_part(page)):
        text = " ".join(plain(header).split())
        found = re.match(r"pub (?:const |async )*fn (\w+)(?:<.*?>)?\((.*)\)\s*->\s*(.*)", text)
        if found and "self" not in re.split(r"[:,]", found[2])[0] and re.search(rf"\b(?:Self|{name})\b", found[3]):
            yield f"{name}::{found[1]}"


def is_plain(page):
    """Whether a page is that of an enum whose variants have no data."""
    found = DECLARATION.search(page)
    body = plain(found[1]).partition("{")[2].rpartition("}")[0] if found else ""
    return body != "" and not re.search(r"[({]", body)


def called(entry):
    """A pattern for a call, with or without parameters of types."""
    return r"\b" + entry.replace("::", "(?:::<[^(]*>)?::") + r"(?:::<[^(]*>)?\("


def look(folder):
    """The types of a crate without an example, the number of all, and the entry points that no example calls."""
    pages = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.html")}
    pages = {path: page for path, page in pages.items() if 'http-equiv="refresh"' not in page}
    examples = "\n".join(plain(example) for page in pages.values() for example in EXAMPLE.findall(page))
    types, bare, entries = [], [], []
    for path, page in sorted(pages.items()):
        kind, _, name = path.stem.partition(".")
        source = SOURCE.search(page)
        if not source or source[1] != folder.name:
            continue  # of another crate, which has its own documentation
        where = "::".join([*path.relative_to(folder.parent).parts[:-1], name])
        if kind in ("struct", "enum", "trait", "union"):
            if kind != "enum" or not is_plain(page):
                types.append(where)
                if not EXAMPLE.search(own_part(page)):
                    bare.append(where)
            entries += [(where.removesuffix(name) + entry, entry) for entry in entry_points(name, page)]
        elif kind == "fn":
            entries.append((where, name))
    uncalled = [where for where, entry in entries if not re.search(called(entry), examples)]
    return types, bare, entries, uncalled


def main():
    root, *crates = sys.argv[1:]
    failed = False
    for crate in crates:
        types, bare, entries, uncalled = look(Path(root) / crate)
        shown = len(types) - len(bare)
        if not types:
            raise SystemExit(f"{root}/{crate} has no pages: run cargo doc")
        print(f"{crate}: {shown} of {len(types)} types have an example, {len(entries) - len(uncalled)} of {len(entries)} entry points are called in one")
        if shown < LEAST_SHARE * len(types):
            failed = True
            print(f"  at least {LEAST_SHARE:.0%} are to have one; these have none: {', '.join(bare)}")
        if uncalled:
            failed = True
            print(f"  no example calls: {', '.join(uncalled)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
