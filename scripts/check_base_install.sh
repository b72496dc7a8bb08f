#!/usr/bin/env bash
# Checks an environment that holds the base install and nothing else: its size, and what it lacks.
# Usage: scripts/check_base_install.sh [ENVIRONMENT]; without one it makes one, and removes it.
set -euo pipefail

limit_mb=400
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=${1:-}

if [[ -z $environment ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  environment=$scratch/environment
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet "$root"
fi

used_mb=$(du -sm "$environment" | cut -f1)
echo "base install: $used_mb MB with Python's own pip, at most $limit_mb"
if ((used_mb > limit_mb)); then
  echo "error: the base install takes $used_mb MB; the largest parts (KB):" >&2
  du -sk "$environment"/lib/python*/site-packages/* | sort -rn | head -15 >&2 || true
  exit 1
fi

cd "$environment" # where no checkout is importable
bin/python - <<'PYTHON'
from importlib.util import find_spec

for name in ("torch", "triton", "xgboost", "sklearn", "nvidia", "datasets"):
    assert find_spec(name) is None, f"the base install must not hold {name}"
PYTHON

bin/perfmodel predict gemm --m 512 --n 512 --k 512 --dtype fp16 --gpu a100-sxm4-80gb --json >answer.json
bin/python - <<'PYTHON'
import json
from pathlib import Path

answer = json.loads(Path("answer.json").read_text())
assert answer["latency_us"] > 0, answer
# The learned model came along with the package.
assert answer["basis"] == "interpolated", f"basis {answer['basis']} on an A100 in fp16"
PYTHON
echo "base install: no torch, triton or xgboost; answers from the learned model"
