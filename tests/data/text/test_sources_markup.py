"""Plain text of documents with markup. The words of the POD and the manual page are those of pod2text and groff."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.data.text.sources import Document, LeftOut
from olmo_hydra.data.text.sources.man import man_text
from olmo_hydra.data.text.sources.markup import html_text
from olmo_hydra.data.text.sources.pod import pod_text
from tests.data.text.reading import documents

POD = """#!/usr/bin/perl
my $code = "not text";

=encoding utf8

=head1 NAME

thing - does B<many I<nested> codes>, C<< $a->{b} < 3 >> and E<lt>tagsE<gt>

=head2 A list

=over 4

=item * first

Wrapped
lines. See L<perlre|the manual> or L<perlop>.X<index entry>

=item C<second>

=back

    verbatim  B<stays>
      indented

=begin html

<b>not text</b>

=end html

=for comment not text

E<233>tE<eacute>E<sol>S<no break>

=cut

more code
"""
POD_TEXT = """NAME

thing - does many nested codes, $a->{b} < 3 and <tags>

A list

- first

Wrapped lines. See perlre or perlop.

- second

    verbatim  B<stays>
      indented

\u00e9t\u00e9/no break"""

MAN = r'''.\" A comment
.TH OPEN 2 2024-05-02 "Linux man-pages"
.SH NAME
open, creat \- open and possibly create a file
.SH SYNOPSIS
.nf
.B #include <fcntl.h>
.PP
.BI "int open(const char *" pathname ", int " flags );
.fi
.SS "Quoted ""heading"""
The
.BR open ()
system call \fIopens\fP a \f[B]file\f[R] \(em see
.IR path_resolution (7),
\(lqquotes\(rq and \(aqapostrophes\(aq\&.
.TP
.B O_RDONLY
Reads, with a \e and
a\~space.
.IP \(bu 3
A point.
.TS
l l.
not	text
.TE
.P
M\(:uller \[u00E9]t\['e] \s-1SMALL\s0 1\-2.
'''
MAN_TEXT = """OPEN(2)

NAME

open, creat - open and possibly create a file

SYNOPSIS

#include <fcntl.h>

int open(const char *pathname, int flags);

Quoted "heading"

The open() system call opens a file \u2014 see path_resolution(7), \u201cquotes\u201d and 'apostrophes'.

O_RDONLY
Reads, with a \\ and a space.

\u2022
A point.

M\u00fcller \u00e9t\u00e9 SMALL 1-2."""

HTML = """<!doctype html><html><head><title>Not text</title><style>p {}</style></head><body>
<nav><a href="x">Home</a></nav>
<h1>Heading &amp; more</h1>
<p>One <b>bold</b>, <i>italic</i>
   word.<br>Next<script>var not = "text"; if (1 < 2) {}</script></p>
<ul><li>first<li>second <p>inner</ul>
<pre>  keep
    this &lt;b&gt;
</pre><!-- not text -->
<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>
<div>last</div><footer>not text</footer></body></html>"""
HTML_TEXT = """Heading & more

One bold, italic word.
Next

- first
- second

inner

  keep
    this <b>

a\tb
c\td

last"""


def test_pod():
    assert pod_text(POD) == POD_TEXT


def test_manual_page():
    assert man_text(MAN) == MAN_TEXT


@pytest.mark.parametrize("page", [".so man3/printf.3\n", '.\\" mdoc\n.Dd May 2, 2024\n.Dt LS 1\n.Sh NAME\n', ""])
def test_pages_that_are_no_text_here(page):
    assert man_text(page) == ""


def test_html():
    lines = [line.rstrip() for line in html_text(HTML).split("\n")]
    assert "\n".join(lines) == HTML_TEXT


@given(
    st.lists(
        st.sampled_from(
            ["<p>", "</p>", "<b>", "<script>", "</script>", "<pre>", "</pre>", "<nav>", "</", "&lt;", "a b", "\n", "<"]
        )
    )
)
def test_any_html_gives_a_text(parts):
    text = html_text("".join(parts))
    assert "\n\n\n" not in text or "<pre>" in parts
    assert not re.search(r"<(p|b|script|nav)>", text)


@given(st.text(alphabet="BCLE<> |\n=a", max_size=40), st.text(alphabet=".\\(['fBs-1\" \na", max_size=40))
def test_any_manual_gives_a_text(pod, man):
    pod_text("=pod\n\n" + pod)
    man_text(man)


def test_descriptions_of_services(tmp_path):
    service = {
        "metadata": {"description": "not an entry"},
        "operations": {
            "Send": {"input": {"shape": "SendRequest"}, "documentation": "<p>Sends <b>one</b>.</p><p>At once.</p>"},
            "Silent": {"http": {"method": "GET"}},
        },
        "resources": {
            "r": {"methods": {"get": {"description": "Gets.", "parameters": {"id": {"description": "Its id."}}}}}
        },
        "schemas": {
            "Thing": {
                "description": "A thing.",
                "properties": {
                    "description": {"type": "string", "description": "What it says."},
                    "kinds": {
                        "items": {"enum": ["A", "B"], "enumDescriptions": ["First.", ""], "description": "Kinds."}
                    },
                },
            }
        },
    }
    (tmp_path / "a.json").write_text(json.dumps(service))
    (tmp_path / "b.json").write_text("[")
    cfg = DomainConfig(source="files", path=str(tmp_path), pattern="*.json", format="api")
    assert list(documents("d", cfg)) == [
        Document("a.json#operations/Send", "Send\n\nSends one.\n\nAt once."),
        Document("a.json#resources/r/methods/get", "get\n\nGets.\n\nid: Its id."),
        Document(
            "a.json#schemas/Thing", "Thing\n\nA thing.\n\ndescription: What it says.\n\nkinds: Kinds.\n\nA: First."
        ),
        LeftOut("b.json", "not a JSON object"),
    ]
