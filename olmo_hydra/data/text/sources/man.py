"""Plain text of manual pages in roff with the `man` macros (groff_man(7), groff_char(7))."""

import re
import unicodedata

NAMED = {
    "aq": "'", "dq": '"', "cq": "\u2019", "oq": "\u2018", "lq": "\u201c", "rq": "\u201d", "em": "\u2014",
    "en": "\u2013", "hy": "-", "bu": "\u2022", "co": "\u00a9", "rs": "\\", "ti": "~", "ha": "^", "ga": "`",
    "mu": "\u00d7", "+-": "\u00b1", "<=": "\u2264", ">=": "\u2265", "!=": "\u2260", "->": "\u2192", "<-": "\u2190",
    "mc": "\u00b5", "de": "\u00b0", "or": "|", "at": "@", "sh": "#", "Do": "$", "ul": "_", "ss": "\u00df",
    "12": "\u00bd", "14": "\u00bc", "pl": "+", "mi": "\u2212", "==": "\u2261", "~~": "\u2248", "Fo": "\u00ab",
    "Fc": "\u00bb", "tm": "\u2122", "rg": "\u00ae", "if": "\u221e", "Tm": "\u2122",
}  # fmt: skip
ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", ":": "\u0308", "~": "\u0303", ",": "\u0327", "o": "\u030a"}
ONE = {"e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "t": "\t"} | {c: c for c in "-.'`_"}
ESCAPE = re.compile(
    r"""\\(?:
        ["\#].*                                             # a comment
      | (?:[fFmMgkny]|\*)(?:\((?!lq|rq|Tm)..|\[[^\]]*\]|[+-]?[^(\[])   # a font, colour, register or string
      | s(?:[+-]?\d|[+-]?\(\d\d|\[[^\]]*\]|'[^']*')         # a size
      | [bCDhHlLNoRSvwxXZ]'[^']*'                           # drawing and moving
      | \*?\((?P<two>..) | \[(?P<long>[^\]]*)\]             # a character by its name
      | (?P<one>.)
    )""",
    re.VERBOSE,
)
ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\ |\S)+)')
FONTS = {"B", "I", "SM", "SB"}
MIXED_FONTS = {"BI", "BR", "IB", "IR", "RB", "RI"}  # of arguments in turn, without space between
PARAGRAPHS = {"PP", "P", "LP", "HP", "sp", "RS", "RE", "SY", "YS", "br"}
VERBATIM, FILLED = {"nf", "EX"}, {"fi", "EE"}
SKIPPED = {"TS": "TE", "EQ": "EN", "PS": "PE", "de": ".", "ig": "."}  # blocks that are no text, and what ends them


def man_text(roff: str) -> str:
    """Headings, paragraphs, tagged lists and verbatim blocks of a page, without fonts and layout.

    Left out: tables, equations and pictures, comments, targets of links. A page that only names another (`.so`), or
    is written in the `mdoc` macros, gives no text.
    """
    page = _Page()
    skipping = ""
    for line in roff.replace("\\\n", "").splitlines():
        macro, _, rest = line[1:].lstrip().partition(" ") if line[:1] in (".", "'") else ("", "", line)
        if skipping:
            skipping = "" if macro == skipping else skipping
        elif macro in ("Dd", "so"):
            return ""
        elif macro in SKIPPED:
            skipping = SKIPPED[macro]
        else:
            page.read(macro, rest)
    page.flush()
    return "\n\n".join(page.parts)


class _Page:
    """The paragraphs so far, and the one at hand."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._lines: list[str] = []
        self._verbatim = False
        self._next = ""  # what the next text is: a heading, or the tag of a list
        self._tags: list[str] = []

    def read(self, macro: str, rest: str) -> None:
        arguments = [_inline(quoted.replace('""', '"') or bare) for quoted, bare in ARGUMENT.findall(rest)]
        if not macro:
            self._text(_inline(rest))
        elif macro in FONTS:
            self._text(" ".join(arguments))
        elif macro in MIXED_FONTS:
            self._text("".join(arguments))
        elif macro == "TH":
            self.parts.append(f"{arguments[0]}({arguments[1]})" if len(arguments) > 1 else " ".join(arguments))
        elif macro in ("SH", "SS"):
            self.flush()
            self._next = "heading"
            if arguments:
                self._text(" ".join(arguments))
        elif macro in ("TP", "TQ", "IP"):
            self.flush()
            if macro != "IP":
                self._next = "tag"
            elif arguments:
                self._tags = [arguments[0]]
        elif macro in PARAGRAPHS | VERBATIM | FILLED:
            self.flush()
            self._verbatim = (self._verbatim or macro in VERBATIM) and macro not in FILLED

    def flush(self) -> None:
        """Ends a paragraph."""
        text = "\n".join(self._lines) if self._verbatim else " ".join(" ".join(self._lines).split())
        if text.strip():
            self.parts.append("\n".join([*self._tags, text.strip("\n")]))
            self._tags = []
        self._lines = []

    def _text(self, text: str) -> None:
        if self._next == "heading":
            self.parts.append(text)
        elif self._next == "tag":
            self._tags.append(text)
        elif text.strip() or self._verbatim:
            self._lines.append(text)
        else:
            self.flush()
        self._next = ""


def _inline(text: str) -> str:
    return ESCAPE.sub(_shown, text)


def _shown(escape: re.Match[str]) -> str:
    if escape["one"]:
        return ONE.get(escape["one"], "")
    name = escape["two"] or escape["long"] or ""
    if name in NAMED:
        return NAMED[name]
    if re.fullmatch(r"u[0-9A-F]{4,6}", name):
        return chr(int(name[1:], 16))
    if len(name) == 2 and name[0] in ACCENTS and name[1].isalpha():
        return unicodedata.normalize("NFC", name[1] + ACCENTS[name[0]])
    return ""
