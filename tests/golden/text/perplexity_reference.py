# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a model by transformers in float32, on the ids that `attn-lm perplexity --json` printed.

    attn-lm perplexity --model MODEL.gguf --file TEXT --json > answer.json
    python perplexity_reference.py MODEL.gguf answer.json

Prints both perplexities and their relative difference; the exit status is 1 beyond 0.2 % (packages: requirements.txt).
Window k is the file's bos_token_id, then the 1,023 ids from 512 k on; the log-probabilities of its last 512 ids count,
and a last window that is not full is dropped. Weights are dequantised by transformers' own loader.
"""
import json
import math
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import torch
import transformers

WINDOW = 1024
COUNTED = 512
LIMIT = 2e-3


@torch.inference_mode()
def negative_log_probability(model, window):
    """The sum over the last COUNTED ids; in double from the logits on."""
    logits = model(torch.tensor([window]), use_cache=False).logits[0, -COUNTED - 1:-1].double()
    chosen = torch.tensor(window[-COUNTED:]).unsqueeze(1)
    return -float(logits.log_softmax(-1).gather(1, chosen).sum())


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: perplexity_reference.py MODEL.gguf ANSWER.json")
    path = pathlib.Path(sys.argv[1])
    answer = json.loads(pathlib.Path(sys.argv[2]).read_text())
    ids = answer["ids"]
    bos = int(gguf.GGUFReader(path).fields["tokenizer.ggml.bos_token_id"].contents())
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    if {p.dtype for p in model.parameters()} != {torch.float32}:
        sys.exit("the model is not float32 throughout")
    total, windows = 0.0, 0
    for at in range(0, len(ids) - (WINDOW - 1) + 1, COUNTED):
        total += negative_log_probability(model, [bos] + ids[at:at + WINDOW - 1])
        windows += 1
    if windows != answer["windows"]:
        sys.exit(f"{windows} windows, attn-lm has {answer['windows']}")
    expected = math.exp(total / (windows * COUNTED))
    difference = answer["perplexity"] / expected - 1
    print(f"reference {expected:.6f}, attn-lm {answer['perplexity']:.6f}, difference {100 * difference:+.5f} %")
    sys.exit(abs(difference) > LIMIT)


if __name__ == "__main__":
    main()
