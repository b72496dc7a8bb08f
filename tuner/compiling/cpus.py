"""How many CPUs this process may use: its affinity, and the quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def available_cpus(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Return a number of at least 1: a container's quota counts, rounded up."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _quota(cgroups, own)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def _quota(cgroups: Path, own: Path) -> float | None:
    """The least quota from this group up to the root, in CPUs; ``None`` where there is none."""
    found = []
    for folder in _groups(cgroups, own):
        try:
            limit, period = (folder / "cpu.max").read_text().split()  # version 2
        except (OSError, ValueError):
            try:
                limit = (folder / "cpu.cfs_quota_us").read_text().strip()  # version 1
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            except OSError:
                continue
        try:
            if limit != "max" and int(limit) > 0 and int(period) > 0:
                found.append(int(limit) / int(period))
        except ValueError:
            continue
    return min(found, default=None)


def _groups(cgroups: Path, own: Path) -> list[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    folders = [cgroups, cgroups / "cpu"]
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, name = parts
        base = cgroups if not controllers else cgroups / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        at = base / name.lstrip("/")
        while at not in (base, at.parent):
            folders.append(at)
            at = at.parent
    return folders
