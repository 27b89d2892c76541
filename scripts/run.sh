#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make run: set-up, release build of attn and attn-lm, the model, and three questions answered in one batch.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh release attn_cli attn_lm
model=$(scripts/fetch-model.sh)
exec build/release/bin/attn-lm generate --model "$model" --chatml --max-tokens 80 \
  --prompt "What is the capital of France?" \
  --prompt "Why is the sky blue?" \
  --prompt "Write one sentence about the sea."
