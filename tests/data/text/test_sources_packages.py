"""Packages as sources of text. apt and dpkg are played here; docs/corpus.md has the real ones."""

import hashlib
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.sources import Document, LeftOut, Origin, units
from olmo_hydra.data.text.sources.debian import descriptions
from tests.data.text.reading import documents

INDEX = """Package: zoo
Description-md5: 0123456789abcdef
Description-en: animals in cages
 A zoo has
  - indented lines
 .
 and paragraphs.

Package: ape
Description-md5: fedcba9876543210
Description-en: one line

Package: zoo
Description-md5: 0123456789abcdef
Description-en: animals in cages
 A zoo has
  - indented lines
 .
 and paragraphs.
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OLMO_HYDRA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def apt(monkeypatch):
    """Plays apt-get and dpkg-deb; collects what was asked of apt-get."""
    asked = []

    def run(command, cwd=None, **_):
        program, *arguments = command
        option = {key: value for key, _, value in (part.partition("=") for part in arguments)}
        if program == "dpkg-deb":
            if not Path(arguments[1]).stat().st_size:
                return subprocess.CompletedProcess(command, 2, "", "dpkg-deb: error: no archive\n")
            docs = Path(arguments[2]) / "usr/share/doc"
            docs.mkdir(parents=True)
            (docs / "a.txt").write_text(f"text of {Path(arguments[1]).name}")
            (docs / "link.txt").symlink_to("a.txt")
            return subprocess.CompletedProcess(command, 0, "", "")
        asked.append(arguments[arguments.index("-q") + 1 :])
        if "update" in arguments:
            lists = Path(option["Dir::State::Lists"])
            (lists / "host_dists_release_main_i18n_Translation-en").write_text(INDEX)
            (lists / "host_dists_security_main_i18n_Translation-en").write_text(INDEX[:40])
        elif "absent" in arguments:
            return subprocess.CompletedProcess(command, 100, "", "W: noise\nE: Unable to locate package absent\n")
        else:
            for package in arguments[arguments.index("download") + 1 :]:
                (Path(cwd) / f"{package.partition('=')[0]}_1%3a2.0-1_all.deb").write_text(package)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_debian_packages_are_fetched_once(cache, apt):
    cfg = DomainConfig(source="deb", packages=["doc-b", "doc-a=1:2.0-1"], pattern="usr/**/*.txt")
    for _ in range(2):
        found = units("mine", cfg)
        read = [item for unit in found for item in unit.read()]
        assert [item.name for item in read if isinstance(item, Document)] == [
            "doc-a/usr/share/doc/a.txt",
            "doc-b/usr/share/doc/a.txt",
        ]
        assert [item.reason for item in read if isinstance(item, LeftOut)] == ["link", "link"]
    assert apt == [["update"], ["download", "doc-a=1:2.0-1", "doc-b"]]
    assert found[1].origin == Origin("deb", "doc-a", "1:2.0-1", hashlib.sha256(b"doc-a=1:2.0-1").hexdigest())
    assert not list(cache.rglob("*.partial"))


def test_processes_fetch_one_after_the_other(cache, apt, monkeypatch):
    """As threads here: each takes the lock of the system on its own."""
    played, at_once, most = subprocess.run, [], []

    def slow(command, **options):
        at_once.append(command)
        most.append(len(at_once))
        time.sleep(0.02)
        try:
            return played(command, **options)
        finally:
            at_once.pop()

    monkeypatch.setattr(subprocess, "run", lambda c, **o: (slow if c[0] == "apt-get" else played)(c, **o))
    sources = [
        DomainConfig(source="deb", packages=["doc-a"]),
        DomainConfig(source="deb", packages=["doc-a", "doc-b"]),
        DomainConfig(source="apt_descriptions"),
    ]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda cfg: units("mine", cfg), sources))
    assert max(most) == 1
    fetched = [package for asked in apt if asked[0] == "download" for package in asked[1:]]
    assert sorted(fetched) == ["doc-a", "doc-b"]


def test_what_cannot_be_fetched_says_how(cache, apt, monkeypatch):
    with pytest.raises(RequestError) as caught:
        units("mine", DomainConfig(source="deb", packages=["absent"]))
    assert caught.value.key == "data.domains.mine.packages" and "Unable to locate" in caught.value.problem
    assert "apt-get download absent" in caught.value.instead
    (cache / "debian" / "damaged_1_all.deb").write_bytes(b"")
    with pytest.raises(RequestError) as caught:
        units("mine", DomainConfig(source="deb", packages=["damaged"]))
    assert "cannot be unpacked (no archive)" in str(caught.value) and caught.value.key == "data.domains.mine"

    def no_program(command, **_):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(subprocess, "run", no_program)
    with pytest.raises(RequestError, match="this machine has no apt-get"):
        units("mine", DomainConfig(source="apt_descriptions"))


def test_descriptions_are_unfolded():
    ape, zoo = descriptions(INDEX)
    assert ape == {"id": "ape fedcba98", "text": "one line"}
    assert zoo["text"] == "animals in cages\nA zoo has\n - indented lines\n\nand paragraphs."


def test_descriptions_of_the_release(cache, apt):
    found = list(documents("mine", DomainConfig(source="apt_descriptions")))
    assert [document.name for document in found] == ["descriptions#ape fedcba98", "descriptions#zoo 01234567"]
    list(documents("mine", DomainConfig(source="apt_descriptions")))
    assert apt == [["update"]]


def test_wheels_are_read_without_installing(cache):
    wheel = cache / "wheels" / "some_thing-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as opened:
        for name in ("pkg/b.txt", "pkg/a.txt", "pkg/c.py"):
            opened.writestr(name, f"text of {name}")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    cfg = DomainConfig(source="pypi", packages=[f"some-thing==1.0 --hash=sha256:{sha256}"], pattern="pkg/*.txt")
    (unit,) = units("mine", cfg)
    assert unit.origin == Origin("pypi", "some-thing", "1.0", sha256)
    assert [document.text for document in unit.read()] == ["text of pkg/a.txt", "text of pkg/b.txt"]
    cfg.packages = ["some-thing==1.0 --hash=sha256:" + "0" * 64]
    with pytest.raises(RequestError, match="has the sha256"):
        units("mine", cfg)


@pytest.mark.parametrize("packages", [[], ["some-thing"], ["some-thing==1.0"], ["some-thing==1.0 --hash=sha256:abc"]])
def test_a_wheel_needs_version_and_hash(packages):
    with pytest.raises(RequestError) as caught:
        units("mine", DomainConfig(source="pypi", packages=packages))
    assert caught.value.key == "data.domains.mine.packages" and "NAME==VERSION" in caught.value.instead
