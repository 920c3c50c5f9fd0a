"""Plain text of HTML."""

import re
from html.parser import HTMLParser

# What is not read: what a page does, how it looks, and how one gets to other pages.
DROPPED = {"head", "script", "style", "nav", "footer", "form", "button", "svg", "template", "iframe", "object"}
BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "legend", "li",
    "main", "note", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul",
}  # fmt: skip
APART = {"blockquote", "dl", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre", "section", "table", "ul"}
CELLS = {"td", "th"}


def html_text(html: str) -> str:
    """What a reader sees: paragraphs, headings and lists apart, white space collapsed but in `<pre>`.

    Kept: the text of all elements, list items as `- `, cells of a table by tabs. Left out: `DROPPED`, comments,
    attributes (targets of links, texts for pictures).
    """
    parser = _Text()
    parser.feed(html)
    parser.close()
    return parser.text()


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._dropped: list[str] = []
        self._pre = 0

    def text(self) -> str:
        lines = [line.rstrip(" ") for line in "".join(self._parts).split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if self._dropped or tag in DROPPED:
            if tag in DROPPED:
                self._dropped.append(tag)
            return
        self._break(tag)
        self._pre += tag == "pre"
        if tag == "li":
            self._parts.append("- ")

    def handle_endtag(self, tag: str) -> None:
        if self._dropped:
            if tag in self._dropped:  # an element that is never closed ends with the one around it
                del self._dropped[self._dropped.index(tag) :]
            return
        self._break(tag)
        if tag == "pre" and self._pre:
            self._pre -= 1
        if tag in CELLS:
            self._parts.append("\t")

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        if not self._dropped:
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if self._dropped:
            return
        if not self._pre:
            data = re.sub(r"\s+", " ", data)
            if self._at_start():
                data = data.lstrip(" ")
        if data:
            self._parts.append(data)

    def _break(self, tag: str) -> None:
        if tag in BLOCKS and self._parts:
            self._parts.append("\n\n" if tag in APART else "" if self._at_start() and tag != "br" else "\n")

    def _at_start(self) -> bool:
        return not self._parts or self._parts[-1][-1:] in ("\n", "\t", " ")
