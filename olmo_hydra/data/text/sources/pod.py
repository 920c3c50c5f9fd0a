"""Plain text of POD, Perl's format of manuals (perlpod)."""

import re
from html import unescape

# `C<< a->b >>` holds what stands between as many brackets as open it; `C<a>` has no bracket inside but those of codes.
MANY = re.compile(r"([A-Z])(<<+)\s+(.*?)\s+(?:>>+)", re.DOTALL)
ONE = re.compile(r"([A-Z])<([^<>]*)>")
HIDDEN = str.maketrans("<>", "\1\2")  # brackets that are text, while codes are looked for
SHOWN = str.maketrans("\1\2", "<>")


def pod_text(pod: str) -> str:
    """Headings, paragraphs, lists and verbatim blocks; formatting codes become what they show, links their text.

    Left out: code (what stands outside POD), blocks for one other format, index entries.
    """
    parts: list[str] = []
    inside = False
    skipping = False  # a block for another format
    for block in re.split(r"\n[^\S\n]*\n", pod.replace("\r\n", "\n")):
        block = block.strip("\n")
        command = re.match(r"=([a-zA-Z]\w*)\s*(.*)", block, re.DOTALL)
        if command:
            name, text = command[1], _inline(command[2])
            inside = name != "cut"
            if name in ("begin", "end"):
                skipping = name == "begin" and not text.startswith(":")
            elif not skipping and name.startswith("head"):
                parts.append(text)
            elif not skipping and name == "item":
                parts.append("- " + text.removeprefix("*").strip())
        elif inside and not skipping:
            parts.append(block if block[:1].isspace() else _inline(block))
    return "\n\n".join(part for part in parts if part.strip() and part != "- ")


def _inline(text: str) -> str:
    text = MANY.sub(lambda match: _shown(match[1], match[3]), text)
    n_codes = 1
    while n_codes:  # codes may hold codes: from the innermost out
        text, n_codes = ONE.subn(lambda match: _shown(match[1], match[2]), text)
    return re.sub(r"\s+", " ", text).strip().translate(SHOWN)


def _shown(code: str, content: str) -> str:
    if code == "E":
        named = {"sol": "/", "verbar": "|"}.get(content)
        content = named or unescape(f"&{'#' if content.isdigit() else ''}{content};")
    elif code == "L":
        content = content.partition("|")[0]
    return "" if code in "XZ" else content.translate(HIDDEN)
