"""``python -m tuner.collect.session``: what ``scripts/measure_gpu.sh`` runs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from perfmodel.errors import PerfmodelError
from perfmodel.hardware.catalog import load_gpu
from tuner.collect.session.prepare import prepare
from tuner.collect.session.rehearsal import Mischief
from tuner.collect.session.run import DEFAULT_GPU, HUNG_S, Options, run_session

STARTED = "MEASURE_STARTED"


def main(arguments: list[str] | None = None) -> int:
    """Run a session; 0 if no step failed and no kernel was wrong."""
    parser = argparse.ArgumentParser(
        prog="measure_gpu.sh",
        description="Measure on one GPU for so many minutes: correctness, ceilings, attention, "
        "decode, gemm, moe. Steps whose time does not come are dropped from the end.",
    )
    parser.add_argument(
        "--minutes", type=float, required=True, help="after which it ends by itself"
    )
    parser.add_argument("--out", type=Path, default=Path("measured"), help="folder for the results")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:1")
    parser.add_argument(
        "--work", type=Path, help="folder for rows on the way; kept, and gone on with the next time"
    )
    parser.add_argument("--rehearse", action="store_true", help="made-up times, no GPU needed")
    parser.add_argument(
        "--compile-only", action="store_true",
        help="no GPU needed: only compile, what is needed soonest first, into TRITON_CACHE_DIR",
    )  # fmt: skip
    parser.add_argument("--gpu", help="with --rehearse or --compile-only: the device to plan for")
    parser.add_argument("--fail", metavar="STEP", help="with --rehearse: a step that fails")
    parser.add_argument("--hang", metavar="STEP", help="with --rehearse: one with a hang in it")
    parser.add_argument("--die", metavar="STEP", help="with --rehearse: one with a crash in it")
    parser.add_argument("--hung-s", type=float, default=HUNG_S, help="after which a launch hangs")
    given = parser.parse_args(arguments)
    options = Options(
        given.minutes, given.out, given.device, given.gpu, given.work, given.rehearse,
        Mischief(given.fail, given.hang, given.die), given.hung_s, _started(),
    )  # fmt: skip
    try:
        if given.compile_only:
            prepare(
                load_gpu(given.gpu or DEFAULT_GPU), given.minutes, rehearse=given.rehearse, say=say
            )
            return 0
        ends = run_session(options, say)
    except PerfmodelError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    wrong = any(end.name == "correctness" and end.ok < end.rows for end in ends)
    return int(wrong or any(end.state == "failed" for end in ends))


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def _started() -> float | None:
    """When the shell started, whose unpacking counts: a decimal comma in some languages."""
    text = os.environ.get(STARTED, "").replace(",", ".")
    return float(text) if text else None


if __name__ == "__main__":
    sys.exit(main())
