# SPDX-License-Identifier: Apache-2.0
"""Writes blocks.bin: random blocks of every tensor type that attn-lm reads, and their values by the `gguf` package.

Per type: uint32 type number, uint32 elements, uint32 bytes, the blocks, the elements as float32; all little-endian.
Scales are finite halves, subnormal and negative ones among them; all other bytes are random.

    pip install gguf==0.19.0 numpy==2.4.6 && python make_blocks.py
"""
import pathlib
import struct

import gguf
import numpy as np

# (type, blocks, byte offsets of the binary16 scales in a block)
TYPES = [("F16", 96, [0]), ("BF16", 96, []), ("Q4_0", 16, [0]), ("Q4_1", 16, [0, 2]), ("Q8_0", 16, [0]),
         ("Q4_K", 8, [0, 2]), ("Q6_K", 8, [208])]


def random_blocks(rng, count, size, scales):
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in scales:
        halves = (rng.standard_normal(count) * 2.0 ** rng.integers(-26, 2, count)).astype("<f2")
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(count, 2)
    return blocks


def main():
    rng = np.random.default_rng(20260601)
    out = b""
    for name, count, scales in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        size = gguf.GGML_QUANT_SIZES[kind][1]
        blocks = random_blocks(rng, count, size, scales)
        if name == "BF16":
            blocks[:, 1] &= 0xBF  # neither infinite nor not a number
        values = np.ascontiguousarray(gguf.dequantize(blocks.reshape(-1), kind), dtype="<f4").reshape(-1)
        if not np.isfinite(values).all():
            raise SystemExit(f"{name}: a value is not finite")
        out += struct.pack("<III", int(kind), values.size, blocks.size) + blocks.tobytes() + values.tobytes()
    pathlib.Path(__file__).with_name("blocks.bin").write_bytes(out)


if __name__ == "__main__":
    main()
