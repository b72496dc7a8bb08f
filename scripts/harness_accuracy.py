"""How well the harness finds known times and the best of near-equal configurations; no GPU needed.

python scripts/harness_accuracy.py --seeds 200 --races 40
"""

from __future__ import annotations

import argparse
import sys

from tuner.measure.trust import AHEAD, CONFIGS, DRIFT, NOISE, RAMP, STALLS, Trust, trust


def main() -> int:
    """Print what came out; exit code 1 if it is worse than promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="of the medians")
    parser.add_argument("--races", type=int, default=20, help="of each kind of comparison")
    given = parser.parse_args()
    print(f"fake device: {NOISE:.0%} noise, {STALLS:.0%} stalls")
    slow = trust(range(given.seeds), range(given.races))
    print(
        f"median, drift {DRIFT:g} a sample: {slow.within(0.01):.1%} of {given.seeds} seeds within "
        f"1 % of the truth; the worst is off by {slow.errors[-1]:.2%}"
    )
    ramp = trust((), range(given.races), ramp=RAMP)
    for drift, found in ((DRIFT, slow), (RAMP, ramp)):
        print(
            f"best of {CONFIGS}, {AHEAD:.0%} ahead, drift {drift:g} a sample: found by "
            f"{found.found} of {found.raced} seeds"
        )
    return 0 if slow.within(0.01) >= 0.95 and all(map(_found, (slow, ramp))) else 1


def _found(trust: Trust) -> bool:
    return trust.found >= 0.9 * trust.raced


if __name__ == "__main__":
    sys.exit(main())
