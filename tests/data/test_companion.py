"""Indices beside token files, against Dolma's format and names of every kind."""

import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.companion import Entry, entries


def read(folder, content):
    (folder / "0.csv.gz").write_bytes(content)
    return list(entries(folder / "0.csv.gz"))


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\udc80\udcff,%\n\r\x85\u2028")))
def test_any_name_goes_into_a_line(tmp_path_factory, name):
    entry = Entry(3, 70, name, ("66", "ab"))
    assert entry.line().splitlines() == [entry.line()[:-1]]
    assert entry.line().count(",") == 4 and entry.line().isascii()
    assert read(tmp_path_factory.mktemp("index"), gzip.compress(entry.line().encode())) == [entry]


def test_lines_of_dolma(tmp_path):
    assert read(tmp_path, gzip.compress(b"0,4,a%2Cb,source.gz,1\n4,7\n")) == [
        Entry(0, 4, "a,b", ("source.gz", "1")),
        Entry(4, 7, ""),
    ]


def test_a_name_that_is_no_utf8_is_that_of_the_file(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    (entry,) = read(tmp_path, gzip.compress(b"0,4,caf%E9.txt,9,ab\n"))
    assert entry.name == name and os.fsencode(entry.name) == b"caf\xe9.txt"


@pytest.mark.parametrize("damage", ["line", "end", "bits", "magic"])
def test_damage(tmp_path, damage):
    whole = gzip.compress(b"".join(b"%d,%d,a\n" % (i, i + 1) for i in range(9)), mtime=0)
    content = {
        "line": gzip.compress(b"0,2,a\nx,y,z\n"),
        "end": whole[:-9],
        "bits": whole[:12] + b"\xff\xff\xff" + whole[15:],
        "magic": b"0,1,a\n",
    }[damage]
    with pytest.raises(RequestError, match="at line 2" if damage == "line" else "at line") as caught:
        read(tmp_path, content)
    assert caught.value.where.endswith("0.csv.gz")
