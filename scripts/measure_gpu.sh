#!/usr/bin/env bash
# Measure on this machine's GPU for so many minutes, with no network; --help says more, and so does
# "One prepared command" in tuner/collect/README.md.
#
#   scripts/measure_gpu.sh --minutes 15 --out measured
#   scripts/measure_gpu.sh --minutes 2 --rehearse --out rehearsed
#
# What the machine lacks beside torch and Triton is taken from carried/site.tar.xz, and binaries that
# were compiled elsewhere from carried/cache.tar.xz: scripts/carry.py makes both.
set -euo pipefail
export MEASURE_STARTED="$EPOCHREALTIME"  # the minutes count from here
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
carried="${MEASURE_CARRIED:-$root/carried}"
python="${PYTHON:-python3}"
scratch="${MEASURE_SCRATCH:-${TMPDIR:-/tmp}/measure-gpu-$(id -u)}"  # kept: the next call starts faster

mkdir -p "$scratch"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$scratch/triton}"
if [ -f "$carried/site.tar.xz" ]; then
  [ -d "$scratch/site" ] || "$python" "$root/scripts/carry.py" unpack "$carried/site.tar.xz" "$scratch/site"
  export PYTHONPATH="$PYTHONPATH:$scratch/site"
fi
if [ -f "$carried/cache.tar.xz" ]; then
  "$python" "$root/scripts/carry.py" unpack "$carried/cache.tar.xz" "$TRITON_CACHE_DIR"
fi
exec "$python" -m tuner.collect.session "$@"
