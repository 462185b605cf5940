"""The text of a piece of HTML."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Tags in their order, and the text between them; every tag must be closed."""

    EMPTY = ("rect", "polyline", "circle", "br", "meta", "input", "path", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader
