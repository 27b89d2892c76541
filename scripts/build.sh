#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh PRESET [TARGET...]: configures (always: cheap, and follows an edited preset) and builds quietly; what is
# printed is warnings, errors and the progress of files compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
cmake --preset "$preset" --log-level=WARNING >/dev/null
# A build with nothing to do says nothing.
cmake --build --preset "$preset" ${1:+--target "$@"} |
  grep -v -e 'Re-checking globbed directories' -e '^ninja: no work to do' || [ "${PIPESTATUS[0]}" = 0 ]
