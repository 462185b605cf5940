"""Decode files to text: detect encodings, and extract the visible text of HTML pages."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Literal, cast

Encoding = Literal["whole", "repaired", "binary"]

# longest first: the mark of UTF-32 begins with that of UTF-16
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
AUTO = "auto"
"""Encoding from the file itself, else UTF-8."""
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_DECLARED = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([a-zA-Z0-9_-]{3,20})", re.IGNORECASE)
# encodings a page may declare: all of them plain tables, none that unpacks or computes
_PAGE_ENCODINGS = re.compile(r"(iso-8859|windows-125|cp125|latin|koi8|shift_jis|euc-|gb|big5)")
# pages that declare these mean those, as every browser has it: they hold more characters
_AS_BROWSERS = {
    **dict.fromkeys(("iso-8859-1", "iso8859-1", "latin1", "latin-1"), "cp1252"),
    **dict.fromkeys(("iso-8859-9", "latin5"), "cp1254"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "shift_jis": "cp932",
    "euc-kr": "cp949",
}
_MOST_LOST = 0.3
"""Share of characters that may be unreadable before a file counts as binary."""

_UNSEEN = frozenset({"script", "style", "template"})
# these run on with the words around them; all other elements end a word
_INLINE = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font"}
    | {"i", "ins", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strong", "sub"}
    | {"sup", "time", "tt", "u", "var", "wbr"}
)


def detect_encoding(beginning: bytes, named: str = AUTO) -> str:
    """The encoding of a byte order mark in the first four bytes; else the named one, or UTF-8."""
    marked = (name for mark, name in _MARKS.items() if beginning.startswith(mark))
    return next(marked, "utf-8-sig" if named == AUTO else named)


def decode(content: bytes, named: str = AUTO, *, page: bool = False) -> tuple[str, Encoding]:
    """The text of a file, and whether all of it could be read.

    Tried in order: a byte order mark, valid UTF-8, the encoding an HTML page declares, the named
    encoding. Folders mix encodings, and other encodings hardly ever look like UTF-8. Unreadable
    characters become U+FFFD.

    >>> decode(b"caf\\xe9 au lait")
    ('caf\N{REPLACEMENT CHARACTER} au lait', 'repaired')
    >>> decode(b"caf\\xe9 au lait", "cp1252")
    ('café au lait', 'whole')
    >>> decode(b"\\x7fELF\\x00\\x01")
    ('', 'binary')
    """
    marked = detect_encoding(content[:4], "")
    encoding = marked or detect_encoding(b"", named)
    writes_nul = b"\0" in "a".encode(encoding)
    if b"\0" in content and not writes_nul:
        return "", "binary"
    looks: tuple[str, ...] = ()
    if not marked:
        # of plain ASCII nobody knows: some encodings spell all they have with it; but what has no
        # NUL at all is in none that writes spaces with them
        telling = b"\0" not in content and (writes_nul or not content.isascii())
        looks = (*(("utf-8",) if telling else ()), *(_declared(content) if page else ()))
    for name in (*looks, encoding):
        try:
            return content.decode(name), "whole"
        except (UnicodeDecodeError, LookupError):
            continue
    text = content.decode(encoding, errors="replace")
    if text.count(_REPLACED) > _MOST_LOST * len(text):
        return "", "binary"
    return text, "repaired"


def _declared(content: bytes) -> tuple[str, ...]:
    """Candidate encodings of a page from the one it declares, likelier ones first."""
    match = _DECLARED.search(content[:2048])
    name = match[1].decode("ascii").lower() if match else ""
    return (_AS_BROWSERS.get(name, name), name) if _PAGE_ENCODINGS.match(name) else ()


def _to_surrogates(error: UnicodeError) -> tuple[str, int]:
    """Surrogates, which valid text never contains, for undecodable bytes.

    `replace_surrogates` finds them, and names with different bytes stay different.
    """
    failed = cast(UnicodeDecodeError, error)
    return "".join(chr(0xDC00 + b) for b in failed.object[failed.start : failed.end]), failed.end


SURROGATES = "gmkcf-surrogates"
"""Error handler that keeps undecodable bytes as surrogates, whatever the encoding."""
codecs.register_error(SURROGATES, _to_surrogates)


def replace_surrogates(text: str) -> str:
    """The text with surrogates, which stand for unreadable bytes, as U+FFFD.

    >>> replace_surrogates("caf\\udce9")
    'caf\N{REPLACEMENT CHARACTER}'
    """
    return _SURROGATE.sub(_REPLACED, text)


_SURROGATE = re.compile("[\ud800-\udfff]")


def page_text(markup: str) -> tuple[str, str | None]:
    """What a reader of an HTML page sees, and its title.

    >>> page_text("<title>Tea</title><p>green <b>te</b>a<script>hide()</script><p>black")
    ('green tea\\n\\nblack', 'Tea')
    """
    # without comments and scripts, and with every < that begins no tag spelled out: the parser
    # looks for the end of each of them anew, for hours in a page of nothing else
    quick = _NO_TAG.sub("&lt;", _MARKED.sub(" ", "".join(_without_asides(markup))))
    page = _Page()
    page.feed(quick)
    page.close()
    title = " ".join("".join(page.title).split())
    return "".join(page.visible).strip(), title or None


def _without_asides(markup: str) -> Iterator[str]:
    """Pieces of a page between its comments, scripts and styles.

    From left to right, for each of them hides what looks like the others. An end that is missing
    once is not looked for again, so that the work grows with the page and no faster.
    """
    at = looked = 0
    comments = True
    while match := _ASIDE.search(markup, looked):
        looked = match.end()
        name = (match["name"] or "").lower()
        if match["comment"] and comments:
            end = markup.find("-->", match.start() + 2)  # <!--> is a whole comment
            comments = end >= 0
            if comments:
                yield markup[at : match.start()] + " "
                at = looked = end + len("-->")
        elif name:
            end = _end_of_element(markup, name, looked)
            if end < 0:  # the parser hides the rest of the page, too
                break
            yield markup[at : match.start()] + "\n"
            at = looked = end
        elif "<" in match[0][1:]:
            yield markup[at : match.start()] + "<" + match[0][1:].replace("<", "&lt;")
            at = looked
    yield markup[at:]


def _end_of_element(markup: str, name: str, inside: int) -> int:
    """Where a script or style is over; negative where it is not."""
    opened = markup.find(">", inside)
    if opened >= 0 and markup[opened - 1] == "/":
        return opened + 1
    closed = _ENDS[name].search(markup, opened) if opened >= 0 else None
    return markup.find(">", closed.end()) + 1 or -1 if closed else -1


_ASIDE = re.compile(
    r"(?P<comment><!--)"
    r"|<(?P<name>script|style)(?=[\s/>])"
    # any other tag as a whole: what its values hold is neither comment nor script
    r"""|<[a-z](?:[^<>"'=]++|=\s*+"[^"]*+"|=\s*+'[^']*+'|["'=])*+>""",
    re.IGNORECASE,
)
_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
_MARKED = re.compile(r"<!\[[^<>]*>")
_NO_TAG = re.compile(r"<(?![^<]*>)")


@dataclass(eq=False)
class _Page(HTMLParser):
    visible: list[str] = field(default_factory=list)
    title: list[str] = field(default_factory=list)
    inside: str = ""
    """The element whose content is not seen, or the title."""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if not self.inside and (tag in _UNSEEN or (tag == "title" and not self.title)):
            self.inside = tag
        self._separate(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self._separate(tag)  # <title/> has no end that would be waited for

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.visible.append(data)
        elif self.inside == "title":
            self.title.append(data)

    def _separate(self, tag: str) -> None:
        if not self.inside and tag not in _INLINE:
            self.visible.append("\n")
