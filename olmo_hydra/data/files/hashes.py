"""Hashes by which files and settings are told from others."""

import hashlib
import json
from pathlib import Path
from typing import Any


def sha256_of_file(path: Path) -> str:
    """Of a file's content, in hex."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sha256_of_json(content: Any) -> str:
    """Of a value's JSON, in hex."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
