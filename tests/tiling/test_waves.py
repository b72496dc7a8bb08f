"""How CTAs fill SMs, and which tiles a wave covers, against the launch order spelt out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.tiling.waves import patch, schedule

sms = st.sampled_from([1, 16, 108, 132, 304])
occupancies = st.integers(1, 16)
quick = settings(max_examples=60, deadline=None)


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


@given(st.integers(0, 10**9), sms, occupancies)
@quick
def test_waves_hold_every_cta_once(ctas: int, sm_count: int, occupancy: int) -> None:
    found = schedule(one(ctas), sm_count, one(occupancy))
    slots = sm_count * occupancy
    assert found.full[0] * slots + found.tail_ctas[0] == ctas
    assert 0 <= found.tail_ctas[0] < slots
    assert found.count[0] == -(-ctas // slots)


@given(st.integers(1, 10**9), sms, occupancies)
@quick
def test_the_last_wave_is_spread_over_all_sms(ctas: int, sm_count: int, occupancy: int) -> None:
    found = schedule(one(ctas), sm_count, one(occupancy))
    tail = int(found.tail_ctas[0])
    assert found.tail_occupancy[0] == -(-tail // sm_count)
    assert found.tail_occupancy[0] <= occupancy


def test_a_small_device_takes_more_waves_and_no_device_is_too_small() -> None:
    assert [schedule(one(256), n, one(1)).count[0] for n in (16, 48, 132)] == [16, 6, 2]


def test_a_tile_that_does_not_fit_is_scheduled_as_one_per_sm() -> None:
    assert schedule(one(20), 16, one(0)).count[0] == 2


def test_no_cta_is_no_wave() -> None:
    found = schedule(one(0), 108, one(2))
    assert (found.count[0], found.tail_occupancy[0]) == (0, 0)


def covered(tiles_m: int, tiles_n: int, group_m: int, ctas: int) -> tuple[int, int]:
    """Rows and columns of tiles that the first ``ctas`` programs of a grouped launch touch."""
    rows, columns = set(), set()
    for pid in range(ctas):
        group, within = divmod(pid, group_m * tiles_n)
        height = min(tiles_m - group * group_m, group_m)
        rows.add(group * group_m + within % height)
        columns.add(within // height)
    return len(rows), len(columns)


@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 16), st.integers(1, 600))
@quick
def test_a_wave_covers_the_tiles_that_the_launch_order_gives_it(
    tiles_m: int, tiles_n: int, group_m: int, concurrent: int
) -> None:
    concurrent = min(concurrent, tiles_m * tiles_n)
    found = patch(one(tiles_m), one(tiles_n), one(group_m), one(concurrent))
    rows, columns = covered(tiles_m, tiles_n, group_m, concurrent)
    band = min(group_m, tiles_m)
    if concurrent <= band * tiles_n:
        assert (found.rows[0], found.columns[0]) == (min(rows, band), columns)
    else:  # a band begun counts as whole
        assert rows <= found.rows[0] < rows + band
        assert found.columns[0] == columns


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 5000))
@quick
def test_a_patch_lies_within_the_output_and_holds_its_ctas(
    tiles_m: int, tiles_n: int, group_m: int, concurrent: int
) -> None:
    found = patch(one(tiles_m), one(tiles_n), one(group_m), one(concurrent))
    assert 1 <= found.rows[0] <= tiles_m
    assert 1 <= found.columns[0] <= tiles_n
    assert found.rows[0] * found.columns[0] >= min(concurrent, tiles_m * tiles_n)
