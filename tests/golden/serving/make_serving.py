# SPDX-License-Identifier: Apache-2.0
"""Writes serving.json: the prompts of prompts.json with their greedy continuations and smallest gaps.

All of them run through attn-lm in float32 with nothing shared and a cache that holds everything. Each has to come to
MAX_TOKENS tokens whose two best logits differ by at least MIN_GAP at every step; one that does not is named, to be
replaced in prompts.json.

    ATTN_LM_BIN=build/release/bin/attn-lm ATTN_MODEL=FILE python3 tests/golden/serving/make_serving.py
"""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MAX_TOKENS = 24
BLOCK_SIZE = 16
MIN_GAP = 0.02  # the test wants 0.01; float32 results of other machines differ by far less than what is between


def main():
    source = json.loads((HERE / "prompts.json").read_text())
    prompts = []
    for i in range(max(len(group["endings"]) for group in source["groups"])):  # the groups in turn
        for number, group in enumerate(source["groups"]):
            text = (source["preface"] if group["preface"] else "") + group["text"] + group["endings"][i]
            prompts.append((number, group["endings"][i], text))
    command = [os.environ["ATTN_LM_BIN"], "generate", "--json", "--model", os.environ["ATTN_MODEL"], "--compute",
               "float32", "--cache-format", "float32", "--batch-invariant", "--no-prefix-cache", "--max-tokens",
               str(MAX_TOKENS), "--block-size", str(BLOCK_SIZE), "--cache-blocks", "1000"]
    for _, _, text in prompts:
        command += ["--prompt", text]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    records = []
    refused = 0
    for (number, ending, _), found in zip(prompts, answer["prompts"]):
        if found["min_gap"] < MIN_GAP or found["stop"] != "length":
            print(f"group {number}, {ending!r}: gap {found['min_gap']}, ends by {found['stop']}")
            refused += 1
        records.append({"group": number, "ending": ending, "tokens": len(found["ids"]),
                        "continuation": found["continuation"], "min_gap": found["min_gap"]})
    if refused:
        sys.exit(f"{refused} prompts have to be replaced")
    print(f"{len(records)} prompts, smallest gap {min(record['min_gap'] for record in records)}")
    lines = ",\n".join("    " + json.dumps(record) for record in records)
    (HERE / "serving.json").write_text(
        f'{{\n  "max_tokens": {MAX_TOKENS},\n  "block_size": {BLOCK_SIZE},\n  "prompts": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
