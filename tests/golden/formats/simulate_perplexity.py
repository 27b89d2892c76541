# SPDX-License-Identifier: Apache-2.0
"""What each cache format does to a language model: perplexity, divergence, best tokens, by numpy in float32.

    python simulate_perplexity.py MODEL.gguf IDS [-o ANSWER.json] [--windows N] [--formats K[,V] ...] [--kv-scales auto]

IDS is the answer of `attn-lm perplexity --json`, whose ids are taken, or a file of uint16. The model is computed in
float32 from the file's dequantised tensors; in every layer the rows of K, behind the rotary embedding, and of V go
through encode and decode of a format (row_formats.py) before attention. Nothing is shared with the library. Windows are
those of `attn-lm perplexity`: window k is bos, then the 1,023 ids from 512 k on; the log-probabilities of its last 512
ids count, and a last window that is not full is dropped.

Per format: perplexity; kl, the mean over the counted positions of KL(float32 || format) in nats; agree, at how many of
the first 256 counted positions the best token is float32's. Static scales are 1; with `--kv-scales auto`, and in the
default list beside it, absmax / 448 (e4m3) or / 57344 (e5m2) per layer and KV head over the first window in float32.

Two implementations that compute K and V with sums in another order take different codes where a value lies on the edge
between two, and from there on their rows differ more and more: of int4 keys the perplexities end some tenths of a
percent apart. With `--bytes FILE` (- for standard input) the rows are therefore those of attn-lm's own cache, as perplexity_bytes
writes them for the same formats, decoded here; what encode makes of the simulation's rows is compared with them. Each
answer then has measured, attn-lm's perplexity, and codes_off, the part of all codes that are not encode's. The exit
status is 1 where a perplexity is off by 1 in 10,000, or more than 1 in 1,000 codes are.

    perplexity_bytes MODEL TEXT float32 int4_per_token_head | python simulate_perplexity.py MODEL IDS --bytes - \\
        --formats float32 int4_per_token_head

    pip install numpy==2.4.6 gguf==0.19.0
"""
import argparse
import json
import math
import pathlib
import sys
import time

import gguf
import numpy as np

import row_formats as rf

WINDOW, COUNTED, AGREE = 1024, 512, 256
RANGE = {"fp8_e4m3": rf.F32(448), "fp8_e5m2": rf.F32(57344)}
DEFAULT = ["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e4m3@auto", "fp8_e5m2", "fp8_e5m2@auto",
           "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
           "int8_per_token_head,int4_per_token_head", "int4_per_token_head,int8_per_token_head",
           "fp8_per_token_head,int4_per_token_head", "float32,int4_per_token_head", "int4_per_token_head,float32"]


# ---- The model -------------------------------------------------------------------------------------------------------

class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)

        def field(key):
            return reader.fields[key].contents()

        self.weights = {}
        for tensor in reader.tensors:
            rows = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), rf.F32)
            self.weights[tensor.name] = rows.reshape([int(n) for n in tensor.shape[::-1]])
        self.layers = int(field("llama.block_count"))
        self.heads = int(field("llama.attention.head_count"))
        self.kv_heads = int(field("llama.attention.head_count_kv"))
        self.size = int(field("llama.embedding_length")) // self.heads
        self.epsilon = rf.F32(field("llama.attention.layer_norm_rms_epsilon"))
        self.bos = int(field("tokenizer.ggml.bos_token_id"))
        base = float(field("llama.rope.freq_base"))
        if int(field("llama.rope.dimension_count")) != self.size:
            sys.exit("only a rotary embedding of whole heads is simulated")
        angles = np.outer(np.arange(WINDOW), base ** (-np.arange(0, self.size, 2) / self.size))
        self.cos, self.sin = np.cos(angles).astype(rf.F32)[:, None], np.sin(angles).astype(rf.F32)[:, None]
        self.hidden = np.triu(np.ones((WINDOW, WINDOW), bool), 1)

    def norm(self, x, name):
        mean = np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True)
        return x * (1 / np.sqrt(mean + self.epsilon)).astype(rf.F32) * self.weights[name]

    def rotate(self, x):
        """Pairs of neighbours (2i, 2i + 1), the order in which the file's rows of Q and K lie."""
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * self.cos - odd * self.sin
        out[..., 1::2] = even * self.sin + odd * self.cos
        return out

    def attention(self, q, k, v):
        group = self.heads // self.kv_heads
        out = np.empty_like(q)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T * rf.F32(self.size ** -0.5)
            scores[self.hidden] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            out[:, head] = scores @ v[:, head // group] / scores.sum(axis=1, keepdims=True)
        return out

    def logits(self, ids, cache):
        """Logits of the COUNTED positions that predict the last COUNTED ids. cache(layer, which, rows) -> rows."""
        w = self.weights
        x = w["token_embd.weight"][ids]
        for layer in range(self.layers):
            b = f"blk.{layer}."
            y = self.norm(x, b + "attn_norm.weight")
            q = self.rotate((y @ w[b + "attn_q.weight"].T).reshape(WINDOW, self.heads, self.size))
            k = self.rotate((y @ w[b + "attn_k.weight"].T).reshape(WINDOW, self.kv_heads, self.size))
            v = (y @ w[b + "attn_v.weight"].T).reshape(WINDOW, self.kv_heads, self.size)
            out = self.attention(q, cache(layer, 0, k), cache(layer, 1, v))
            x = x + out.reshape(WINDOW, -1) @ w[b + "attn_output.weight"].T
            y = self.norm(x, b + "ffn_norm.weight")
            gate = y @ w[b + "ffn_gate.weight"].T
            with np.errstate(over="ignore"):
                gate = gate / (1 + np.exp(-gate))
            x = x + (gate * (y @ w[b + "ffn_up.weight"].T)) @ w[b + "ffn_down.weight"].T
        y = self.norm(x[-COUNTED - 1:-1], "output_norm.weight")
        return y @ w.get("output.weight", w["token_embd.weight"]).T


# ---- Formats ---------------------------------------------------------------------------------------------------------

def split(raw, name, size):
    """Codes and scale bits of rows as the cache holds them, scales inline."""
    if name in rf.FLOATS or name in rf.STATIC:
        return raw, None
    count = (size + 1) // 2 if name == "int4_per_token_head" else size
    return np.ascontiguousarray(raw[:, :count]), np.ascontiguousarray(raw[:, -4:]).view("<u4")[:, 0]


class Cache:
    """The rows of one format, or pair K,V; with @auto behind the name static scales from largest [layer, 2, head]."""

    def __init__(self, name, largest):
        self.name, _, scales = name.partition("@")
        self.auto = scales == "auto"
        self.formats = (self.name.split(",") * 2)[:2]
        self.largest = largest

    def scale(self, layer, which, count):
        if not self.auto or self.formats[which] not in rf.STATIC:
            return None
        return np.tile(self.largest[layer, which] / RANGE[self.formats[which]], count)

    def encode(self, layer, which, x):
        """Of rows [positions, heads, D]."""
        return rf.encode(x.reshape(-1, x.shape[-1]), self.formats[which], self.scale(layer, which, x.shape[0]))

    def decode(self, layer, which, codes, bits, shape):
        return rf.decode(codes, bits, self.formats[which], shape[-1], self.scale(layer, which, shape[0]),
                         exact=False).reshape(shape)

    def __call__(self, layer, which, x):
        return self.decode(layer, which, *self.encode(layer, which, x), x.shape)

    def bytes_per_token(self, model):
        total = 0
        for name in self.formats:
            codes, bits = rf.encode(np.zeros((1, model.size), rf.F32), name)
            total += rf.row_bytes(codes, bits, False).shape[1]
        return total * model.layers * model.kv_heads


class Stored(Cache):
    """Rows of attn-lm's cache in place of one's own; of the last position, which it never holds, zeros."""

    def __init__(self, name, largest, stream, score):
        super().__init__(name, largest)
        self.stream, self.score = stream, score

    def __call__(self, layer, which, x):
        own, own_bits = self.encode(layer, which, x[:-1])
        width = rf.row_bytes(own[:1], None if own_bits is None else own_bits[:1], False).shape[1]
        raw = np.frombuffer(read_exactly(self.stream, width * len(own)), np.uint8).reshape(-1, width)
        codes, bits = split(raw, self.formats[which], x.shape[-1])
        self.score.compare(self.formats[which], own, codes)
        rows = self.decode(layer, which, codes, bits, (len(x) - 1,) + x.shape[1:])
        return np.concatenate((rows, np.zeros_like(x[:1])))


def read_exactly(stream, count):
    data = stream.read(count)
    if len(data) != count:
        sys.exit("--bytes: the file ends early")
    return data


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


class Score:
    def __init__(self):
        self.surprise = self.kl = self.measured = 0.0
        self.agree = self.count = self.codes = self.off = 0

    def add(self, logits, plain, plain_log, ids, first):
        """Rows of this format's logits, of float32's and the latter's log_softmax, and the ids that came."""
        for at in range(0, COUNTED, 64):
            mine, theirs = log_softmax(logits[at:at + 64]), plain_log[at:at + 64]
            chosen = np.array(ids[at:at + 64])
            self.surprise -= float(mine[np.arange(len(chosen)), chosen].sum())
            self.kl += float((np.exp(theirs) * (theirs - mine)).sum())
        self.count += COUNTED
        if first:
            self.agree = int((logits[:AGREE].argmax(1) == plain[:AGREE].argmax(1)).sum())

    def compare(self, name, own, codes):
        """Codes of formats that are none for themselves differ in the last bits and tell nothing."""
        if name in rf.FLOATS:
            return
        if name == "int4_per_token_head":
            own, codes = (np.stack((x & 15, x >> 4)) for x in (own, codes))
        self.codes += codes.size
        self.off += np.count_nonzero(own != codes)

    def answer_bytes(self, answer):
        answer["measured"] = round(math.exp(self.measured / self.count), 6)
        answer["codes_off"] = float(f"{self.off / max(self.codes, 1):.3g}")
        return answer

    def answer(self, cache, model):
        return {"format": cache.name, "kv_scales": "auto" if cache.auto else "1",
                "bytes_per_token": cache.bytes_per_token(model),
                "perplexity": round(math.exp(self.surprise / self.count), 6),
                "kl": float(f"{self.kl / self.count:.6g}"), "agree": self.agree}


class ListFormats(argparse.Action):
    def __call__(self, parser, *_):
        print(*DEFAULT)
        parser.exit()


def read_ids(path):
    if path.suffix == ".bin":
        return np.fromfile(path, "<u2").astype(int).tolist()
    return json.loads(path.read_text())["ids"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("ids", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--windows", type=int, default=1 << 30)
    parser.add_argument("--formats", nargs="+", default=DEFAULT)
    parser.add_argument("--bytes", metavar="FILE")
    parser.add_argument("--kv-scales", choices=["1", "auto"], default="1")
    parser.add_argument("--list", action=ListFormats, nargs=0, help="print the default formats, and nothing else")
    options = parser.parse_args()
    model, ids = Model(options.model), read_ids(options.ids)
    suffix = "@auto" if options.kv_scales == "auto" else ""
    names = [n + suffix if "@" not in n else n for n in options.formats]
    largest = np.zeros((model.layers, 2, model.kv_heads), rf.F32)
    scores = {name: Score() for name in names}
    stream = sys.stdin.buffer if options.bytes == "-" else open(options.bytes, "rb") if options.bytes else None
    windows = min(options.windows, (len(ids) - (WINDOW - 1)) // COUNTED + 1)
    started = time.time()
    for index in range(windows):
        window = [model.bos] + ids[index * COUNTED:index * COUNTED + WINDOW - 1]

        def plain_cache(layer, which, x):
            if index == 0:
                largest[layer, which] = np.abs(x).max(axis=(0, 2))
            return x

        plain = model.logits(window, plain_cache)
        plain_log = log_softmax(plain)
        for name in names:
            if stream is not None:
                logits = model.logits(window, Stored(name, largest, stream, scores[name]))
                scores[name].measured += np.frombuffer(read_exactly(stream, 8), np.float64)[0]
            elif name.startswith("float32") and "," not in name:
                logits = plain
            else:
                logits = model.logits(window, Cache(name, largest))
            scores[name].add(logits, plain, plain_log, window[-COUNTED:], index == 0)
        print(f"window {index + 1} of {windows}, {time.time() - started:.0f} s", file=sys.stderr, flush=True)
    answers = [scores[name].answer(Cache(name, largest), model) for name in names]
    if stream is not None:
        answers = [scores[name].answer_bytes(a) for name, a in zip(names, answers)]
    failed = False
    for a in answers:
        line = (f"{a['format']:48} {a['kv_scales']:5} {a['bytes_per_token']:7} {a['perplexity']:10.6f} {a['kl']:10.3g} "
                f"{a['agree']:4}")
        if stream is not None:
            off = a["measured"] / a["perplexity"] - 1
            line += f" {a['measured']:10.6f} {off:+10.2e} {a['codes_off']:9.3g}"
            failed |= not (abs(off) <= 1e-4 and a["codes_off"] <= 0.001)
        print(line)
    if options.output:
        head = {"command": f"python simulate_perplexity.py SmolLM2.gguf {options.ids.name} -o {options.output.name}",
                "text": "/usr/share/common-licenses/GPL-3", "numpy": np.__version__, "windows": windows,
                "counted_tokens": windows * COUNTED}
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
        body = ",\n".join("  " + json.dumps(a) for a in answers)
        options.output.write_text("{" + lines + ',\n"formats": [\n' + body + "\n]}\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
