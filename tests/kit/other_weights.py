"""A checkpoint that differs from another in a few small tensors: the next policy of a weight update."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path

NORMS = "input_layernorm.weight"


def write_other_weights(model: Path, out: Path, *, factor: float = 1.02) -> None:
    """Write to ``out`` the norms before each layer's attention of ``model``, a float32 checkpoint in one file, times
    ``factor``: enough to change every key, value and log-prob. The other tensors stay what a server has loaded.

    The file is in the safetensors format: length of the header (8 bytes, little endian), header (JSON), tensors.
    """
    with (model / "model.safetensors").open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        found: dict[str, array[float]] = {}
        for name in sorted(n for n in header if n.endswith(NORMS)):
            assert header[name]["dtype"] == "F32"
            begin, end = header[name]["data_offsets"]
            file.seek(8 + size + begin)
            found[name] = array("f", (x * factor for x in array("f", file.read(end - begin))))
    told, at = {}, 0
    for name, values in found.items():
        told[name] = {**header[name], "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    out.mkdir()
    shutil.copyfile(model / "config.json", out / "config.json")
    raw = json.dumps(told).encode()
    (out / "model.safetensors").write_bytes(
        len(raw).to_bytes(8, "little") + raw + b"".join(v.tobytes() for v in found.values())
    )
