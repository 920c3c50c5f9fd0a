"""Reads a `.wandb` file: LevelDB's log format around the client's own protocol buffers."""

import json
import struct
import time
import zlib
from pathlib import Path

BLOCK = 32768


def records(path: Path) -> list:
    """All records of a finished run. The client may write the last of them moments after `finish` has returned."""
    deadline = time.monotonic() + 10
    while True:
        found = _readable(path)
        if time.monotonic() > deadline or (found and found[-1].WhichOneof("record_type") == "exit"):
            return found
        time.sleep(0.02)


def _readable(path: Path) -> list:
    """The records of a file, up to a torn tail."""
    from wandb.proto import wandb_internal_pb2

    data, at, found, body = path.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        checksum, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + length]
        if kind == 0 or len(part) < length or zlib.crc32(bytes([kind]) + part) != checksum:
            break
        at += 7 + length
        body = part if kind in (1, 2) else body + part
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(body))
    return found


def history(path: Path) -> list[dict]:
    """The logged rows, without W&B's own columns."""
    rows = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append({key: json.loads(value) for key, value in items.items() if not key.startswith("_")})
    return rows
