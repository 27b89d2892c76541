#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# vectorised.sh OBJECT FUNCTION...: each function of the object file multiplies and adds with packed instructions, so that
# what is measured as the machine's limit (limits.c), and what is called vectorised (the kernels), is. x86 and AArch64.
set -euo pipefail
object=$1
shift
case $(objdump -f "$object" | sed -n 's/^architecture: \([^,]*\),.*/\1/p') in
i386:x86-64) pattern='[[:space:]]v?(mulps|addps|fmadd[0-9]*ps|paddq)[[:space:]]' ;;
aarch64) pattern='[[:space:]](fmul|fadd|fmla|add)[[:space:]]+v[0-9]+\.' ;;
*) echo "vectorised.sh: no pattern for this architecture" >&2; exit 2 ;;
esac
for function in "$@"; do
  count=$(objdump -d --no-show-raw-insn "$object" |
    awk -v name="<$function>:" '/^[0-9a-f]+ </ { on = ($2 == name) } on' | grep -cE "$pattern" || true)
  echo "$function: $count packed instructions"
  [ "$count" -gt 0 ] || { echo "vectorised.sh: $function is not vectorised in $object" >&2; exit 1; }
done
