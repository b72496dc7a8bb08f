from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset import splits
from perfmodel.dataset.distinct import summarise
from perfmodel.dataset.schema import COLUMNS, conform
from perfmodel.dataset.splits import Split, candidates, group_ids, label_table, problem_ids
from perfmodel.errors import DataError

FILES = ("a_mm.txt", "a_hf_train_mm.txt", "a_timm_train_mm.txt")


def rows(*records: dict[str, Any]) -> pd.DataFrame:
    base: dict[str, Any] = {
        "family": "gemm", "m": 64, "n": 64, "k": 64, "batch": 1, "a_dtype": "fp16",
        "b_dtype": "fp16", "out_dtype": "fp16", "a_layout": "row", "b_layout": "row",
        "lda": 64, "ldb": 64, "block_m": 16, "block_n": 16, "block_k": 16, "group_m": 8,
        "num_warps": 4, "num_stages": 2, "split_k": 1, "num_ctas": 1, "config_known": True,
        "backend": "triton", "is_library": False, "selection": "full", "outcome": "ok",
        "gpu": "a100-sxm4-80gb", "source": "test", "source_file": FILES[0], "raw_rows": 1,
    }  # fmt: skip
    made = []
    for record in records:
        values = record.pop("us", [])
        label = {"distinct_us": values, "latency_us": float(np.median(values)) if values else None}
        made.append(base | label | record)
    return conform(pd.DataFrame(made)).to_pandas()


def many() -> pd.DataFrame:
    """Two devices, 30 sizes, 2 strides, 3 configs, shared among three files."""
    made = []
    for gpu in ("a100-sxm4-80gb", "h100-sxm5"):
        for size in range(30):
            for lda in (64, 72):
                for block in (16, 32, 64):
                    made.append({
                        "gpu": gpu, "m": 64 + 8 * size, "lda": lda, "block_m": block,
                        "us": [10.0 + size + block], "source_file": FILES[size % 3],
                    })  # fmt: skip
                    if size % 10 == 0:  # seen in another file as well
                        again = made[-1] | {"us": [11.0 + size + block]}
                        made.append(again | {"source_file": FILES[(size + 1) % 3]})
    return rows(*made)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([1.0, 2.0, 3.5, 7.0])), max_size=40))
def test_the_label_is_the_median_of_the_distinct_values(pairs: list[tuple[int, float]]) -> None:
    row = np.array([r for r, _ in pairs], dtype=np.int64)
    values = np.array([v for _, v in pairs], dtype=np.float64)
    found = summarise(values, row, 5)
    for at in range(5):
        distinct = np.unique(values[row == at])
        assert found.counts[at] == len(distinct)
        if len(distinct):
            assert found.median[at] == np.median(distinct)
            assert (found.minimum[at], found.maximum[at]) == (distinct[0], distinct[-1])
        else:
            assert np.isnan(found.median[at])


def test_files_merge_into_one_label_over_all_distinct_values() -> None:
    table = rows(
        {"us": [10.0, 20.0], "raw_rows": 300},
        {"us": [20.0, 24.0], "raw_rows": 5, "source_file": FILES[1]},
        {"us": [50.0], "block_m": 32},
    )
    merged = label_table(table)
    assert list(merged["latency_us"]) == [20.0, 50.0]  # of 10, 20, 24
    assert list(merged["distinct_repeats"]) == [3, 1]
    assert list(merged["raw_rows"]) == [305, 1]
    assert merged["source_file"][0] == f"{FILES[1]}, {FILES[0]}"
    apart = label_table(table, by_source_file=True)
    assert list(apart["latency_us"]) == [15.0, 22.0, 50.0]
    assert list(apart["source_file"]) == [FILES[0], FILES[1], FILES[0]]


def test_a_config_that_ran_once_counts_as_run() -> None:
    table = rows(
        {"outcome": "compile_failed"},
        {"us": [10.0], "source_file": FILES[1]},
        {"outcome": "timeout", "block_m": 32},
    )
    merged = label_table(table)
    assert list(merged["outcome"]) == ["ok", "timeout"]
    assert merged["latency_us"][0] == 10.0
    assert pd.isna(merged["latency_us"][1])


@pytest.mark.parametrize(
    "change",
    [{"gpu": "h100-sxm5"}, {"m": 65}, {"lda": 72}, {"a_dtype": "bf16"}, {"a_stride_0": 1},
     {"num_warps": 8}, {"maxnreg": 128}, {"config_extras": {"waves": "2"}}, {"batch": 2},
     {"is_library": True, "backend": "cublas"}, {"timing_method": "cuda_graph"}],
)  # fmt: skip
def test_what_differs_is_not_merged(change: dict[str, Any]) -> None:
    assert len(label_table(rows({"us": [10.0]}, {"us": [20.0]} | change))) == 2


def test_a_label_table_keeps_every_column() -> None:
    assert set(label_table(many()).columns) == set(COLUMNS)


def test_attention_problems_with_unequal_lengths_stay_apart() -> None:
    table = rows(
        *({"family": "attention", "us": [5.0], "q_lens": q} for q in ([1, 9], [5, 5], [1, 9]))
    )
    assert list(problem_ids(table)) == [0, 1, 0]
    assert len(label_table(table)) == 2


def test_families_are_not_mixed() -> None:
    with pytest.raises(DataError, match="one kernel family"):
        label_table(rows({"us": [1.0]}, {"us": [1.0], "family": "attention"}))


def test_only_what_ran_and_is_ours_is_a_candidate() -> None:
    table = rows(
        {"us": [10.0]},
        {"us": [5.0], "is_library": True, "backend": "cublas"},
        {"outcome": "out_of_resources"},
    )
    assert list(candidates(table)) == [True, False, False]


def test_a_problem_is_sizes_types_and_strides_on_one_device() -> None:
    table = many()
    assert len(np.unique(problem_ids(table))) == 2 * 30 * 2
    assert len(np.unique(problem_ids(table, with_gpu=False))) == 30 * 2


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_group_ids_tell_apart_and_order_by_value(a: int, b: int) -> None:
    table = pd.DataFrame({f"c{i}": [a, b, a] for i in range(12)})  # 3^12 codes do not overflow
    ids = group_ids(table, list(table.columns))
    assert ids[0] == ids[2]
    assert (ids[0] < ids[1]) == (a < b)
    assert (ids[0] == ids[1]) == (a == b)


needs_sklearn = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="folds need scikit-learn, of the train extra"
)

SPLITTERS: dict[str, Callable[[pd.DataFrame], Iterator[Split]]] = {
    "kfold": splits.kfold,
    "suites": splits.suites,
    "transfer": splits.transfer,
    "fewshot": lambda labels: splits.fewshot(labels, 4),
    "leave_one_size_out": splits.leave_one_size_out,
}
BY_NAME = [pytest.param(n, marks=needs_sklearn if n == "kfold" else ()) for n in SPLITTERS]


@pytest.mark.parametrize("name", BY_NAME)
def test_splits_do_not_depend_on_the_order_of_rows(name: str) -> None:
    labels = label_table(many(), by_source_file=True)
    order = np.random.default_rng(0).permutation(len(labels))
    shuffled = labels.iloc[order].reset_index(drop=True)
    pairs = list(zip(SPLITTERS[name](labels), SPLITTERS[name](shuffled), strict=True))
    assert pairs
    for straight, other in pairs:
        assert straight.name == other.name
        assert np.array_equal(straight.train[order], other.train)
        assert np.array_equal(straight.test[order], other.test)
        if straight.adapt is not None and other.adapt is not None:
            assert np.array_equal(straight.adapt[order], other.adapt)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_row_is_trained_on_and_tested(name: str) -> None:
    labels = label_table(many(), by_source_file=True)
    for split in SPLITTERS[name](labels):
        assert split.test.any()
        assert split.train.any()
        assert not (split.train & split.test).any()
        if split.adapt is not None:
            assert not (split.adapt & (split.train | split.test)).any()


@needs_sklearn
def test_folds_hold_whole_sizes_and_cover_all() -> None:
    labels = label_table(many())
    folds = list(splits.kfold(labels))
    assert len(folds) == 5
    assert (np.sum([f.test for f in folds], axis=0) == 1).all()
    sizes = group_ids(labels, ["m", "n", "k"])
    for fold in folds:
        assert not set(sizes[fold.test]) & set(sizes[fold.train])


def test_suites_test_on_problems_that_training_has_not_seen() -> None:
    labels = label_table(many(), by_source_file=True)
    found = {split.name: split for split in splits.suites(labels)}
    assert set(found) == {"without-hf", "without-mm", "without-timm"}
    problem = problem_ids(labels)
    for name, split in found.items():
        assert not set(problem[split.test]) & set(problem[split.train])
        suite = splits.suite_of(labels["source_file"])
        assert set(suite[split.test]) == {name.removeprefix("without-")}
        assert name.removeprefix("without-") not in set(suite[split.train])


def test_suites_need_the_source_files_kept_apart() -> None:
    with pytest.raises(DataError, match="by_source_file"):
        list(splits.suites(label_table(rows({"us": [1.0], "source_file": "a.json"}))))


def test_transfer_goes_both_ways() -> None:
    labels = label_table(many())
    found = [split.name for split in splits.transfer(labels)]
    assert found == ["a100-sxm4-80gb->h100-sxm5", "h100-sxm5->a100-sxm4-80gb"]


def test_fewshot_draws_problems_and_removes_their_sizes_from_the_test() -> None:
    labels = label_table(many())
    problem, size = problem_ids(labels), group_ids(labels, ["m", "n", "k"])
    draws = list(splits.fewshot(labels, 4))
    assert len(draws) == 20
    for split in draws:
        assert split.adapt is not None
        assert len(set(problem[split.adapt])) == 4
        assert set(labels["gpu"][split.adapt]) == set(labels["gpu"][split.test])
        assert not set(size[split.adapt]) & set(size[split.test])
    chosen = {tuple(np.unique(problem[s.adapt])) for s in draws if s.adapt is not None}
    assert len(chosen) > 15  # draws differ


@pytest.mark.parametrize("problems", [0, 60, 1000])
def test_fewshot_needs_fewer_problems_than_there_are(problems: int) -> None:
    with pytest.raises(DataError, match=f"cannot draw {problems}"):
        list(splits.fewshot(label_table(many()), problems))


def test_each_size_is_left_out_once() -> None:
    labels = rows(*({"m": s, "n": s, "k": s, "us": [1.0]} for s in (512, 1024, 512)), {"us": [1.0]})
    found = {split.name: int(split.test.sum()) for split in splits.leave_one_size_out(labels)}
    assert found == {"64": 1, "512": 2, "1024": 1}


def test_labels_merged_twice_are_the_labels_merged_at_once() -> None:
    apart = label_table(
        rows(
            {"m": 16, "us": [5.0], "source_file": FILES[0]},
            {"m": 16, "us": [7.0], "source_file": FILES[1]},
            {"m": 32, "us": [9.0], "source_file": FILES[1]},
            {"m": 64, "us": [2.0], "source_file": FILES[0]},
            {"m": 64, "us": [4.0], "source_file": FILES[0]},
        ),
        by_source_file=True,
    )
    assert label_table(apart)["latency_us"].tolist() == [6.0, 9.0, 3.0]
