# SPDX-License-Identifier: Apache-2.0
"""Writes NAME.bin for each scenario of scenarios.txt: what the public DeepSeek-V2 and V3 attention layers make of
weights and hidden states that README.md's generator draws.

    python make_mla.py            writes the files
    python make_mla.py --check    writes nothing: the files are what this machine computes, within CHECK (exit status 1
                                  when not)

The layer runs twice, with its parameters in float64 (what is stored) and in float32. The public code computes rotary
tables, norms and the softmax in float32 in both; the two have to agree within AGREE.
"""
import pathlib
import sys

import numpy as np
import torch
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

HERE = pathlib.Path(__file__).resolve().parent
ORIGINAL_CONTEXT, THETA, BETA_FAST, BETA_SLOW = 4096, 10000.0, 32, 1
AGREE, CHECK = 1e-5, 1e-6
COLUMNS = ("name model tokens hidden heads q_rank rank rope nope v pairs start factor mscale mscale_all_dim").split()
U64 = np.uint64


# ---- The generator ---------------------------------------------------------------------------------------------------

def mix(z):
    with np.errstate(over="ignore"):
        z = (z ^ z >> U64(30)) * U64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> U64(27)) * U64(0x94D049BB133111EB)
    return z ^ z >> U64(31)


def words(scenario, tensor, count):
    with np.errstate(over="ignore"):
        stream = mix(np.asarray(scenario << 8 | tensor, U64))
        return mix(stream + (np.arange(count, dtype=U64) + U64(1)) * U64(0x9E3779B97F4A7C15))


def uniform(scenario, tensor, shape, exponent):
    """2^exponent times numbers of [-1, 1), all of them float32."""
    numbers = (words(scenario, tensor, int(np.prod(shape))) >> U64(40)).astype(np.float64) * 2.0**-23 - 1.0
    return torch.from_numpy((numbers * 2.0**exponent).astype(np.float32).reshape(shape))


def gain(scenario, tensor, size):
    """The weight of a norm: [0.5, 1.5)."""
    numbers = (words(scenario, tensor, size) >> U64(41)).astype(np.float64) * 2.0**-23 + 0.5
    return torch.from_numpy(numbers.astype(np.float32))


# ---- The layer -------------------------------------------------------------------------------------------------------

def read_scenarios():
    lines = [line for line in (HERE / "scenarios.txt").read_text().splitlines() if not line.startswith("#")]
    for number, line in enumerate(lines):
        s = dict(zip(COLUMNS, line.split(), strict=True), number=number)
        yield {k: v if k in ("name", "model", "pairs") else float(v) if k in COLUMNS[-3:] else int(v)
               for k, v in s.items()}


def config_of(s):
    rope = {"rope_type": "default", "rope_theta": THETA}
    if s["factor"] > 1:
        rope = {"rope_type": "yarn", "rope_theta": THETA, "factor": s["factor"], "mscale": s["mscale"],
                "mscale_all_dim": s["mscale_all_dim"], "beta_fast": BETA_FAST, "beta_slow": BETA_SLOW,
                "original_max_position_embeddings": ORIGINAL_CONTEXT}
    kind, extra = DeepseekV2Config, {}
    if s["model"] == "v3":
        kind, extra = DeepseekV3Config, {"rope_interleave": s["pairs"] == "interleaved"}
    return kind(hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["heads"],
                q_lora_rank=s["q_rank"] or None, kv_lora_rank=s["rank"], qk_rope_head_dim=s["rope"],
                qk_nope_head_dim=s["nope"], v_head_dim=s["v"], rope_parameters=rope,
                max_position_embeddings=int(ORIGINAL_CONTEXT * s["factor"]), attn_implementation="eager", **extra)


def fill(layer, s):
    n, qk = s["number"], s["heads"] * (s["nope"] + s["rope"])
    if s["q_rank"]:
        weights = {"q_a_proj": uniform(n, 1, (s["q_rank"], s["hidden"]), -2), "q_a_layernorm": gain(n, 2, s["q_rank"]),
                   "q_b_proj": uniform(n, 3, (qk, s["q_rank"]), -2)}
    else:
        weights = {"q_proj": uniform(n, 4, (qk, s["hidden"]), -1)}
    weights["kv_a_proj_with_mqa"] = uniform(n, 5, (s["rank"] + s["rope"], s["hidden"]), -1)
    weights["kv_a_layernorm"] = gain(n, 6, s["rank"])
    weights["kv_b_proj"] = uniform(n, 7, (s["heads"] * (s["nope"] + s["v"]), s["rank"]), -3)
    weights["o_proj"] = layer.o_proj.weight.detach()
    layer.load_state_dict({name + ".weight": value for name, value in weights.items()})


def run(s, dtype):
    """The inverse frequencies, and what goes into o_proj: [tokens, heads * v]."""
    module = v3 if s["model"] == "v3" else v2
    attention, rotary = ((v3.DeepseekV3Attention, v3.DeepseekV3RotaryEmbedding) if module is v3 else
                         (v2.DeepseekV2Attention, v2.DeepseekV2RotaryEmbedding))
    config = config_of(s)
    layer = attention(config, 0).eval()
    fill(layer, s)
    layer = layer.to(dtype)
    hidden = uniform(s["number"], 0, (1, s["tokens"], s["hidden"]), 0).to(dtype)
    tables = rotary(config)
    mask = torch.full((s["tokens"], s["tokens"]), -torch.inf, dtype=dtype).triu(1)[None, None]
    seen = []
    layer.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        positions = torch.arange(s["start"], s["start"] + s["tokens"])[None]
        layer(hidden, position_embeddings=tables(hidden, positions), attention_mask=mask)
    return tables.inv_freq.numpy().astype("<f4"), seen[0][0].numpy()


def relative_rms(got, want):
    """The worst of the heads' rows."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return np.sqrt((((got - want) ** 2).sum(-1) / (want ** 2).sum(-1)).max())


def main():
    check, failed = sys.argv[1:] == ["--check"], False
    torch.set_num_threads(1)
    for s in read_scenarios():
        frequencies, exact = run(s, torch.float64)
        kept = [0, 1, 2, 8, 15, 16, 31, 32, s["tokens"] // 2, s["tokens"] - 1]
        rows = exact.reshape(-1, s["heads"], s["v"])
        distance = relative_rms(run(s, torch.float32)[1].reshape(rows.shape), rows)
        print(f"{s['name']}: float32 is within {distance:.1e} of float64, RMS of the output {rows.std():.2f}")
        failed |= not distance <= AGREE
        path = HERE / (s["name"] + ".bin")
        if check:
            stored = np.fromfile(path, "<f4")
            away = relative_rms(stored[len(frequencies):].reshape(rows[kept].shape), rows[kept])
            failed |= not np.allclose(stored[:len(frequencies)], frequencies, rtol=CHECK, atol=0) or not away <= CHECK
        else:
            path.write_bytes(frequencies.tobytes() + rows[kept].astype("<f4").tobytes())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
