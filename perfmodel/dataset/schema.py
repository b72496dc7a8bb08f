"""Schema v1 of a measurement table: one row per (device, problem, kernel, config, source file).

The columns are listed once, in ``GROUPS`` below, with type and meaning; the parquet schema, the
checks on reading and the documentation all come from that list. In short:

- what:    family phase direction
- gemm:    m n k batch a_dtype b_dtype out_dtype a_layout b_layout lda ldb
           a_stride_0 a_stride_1 b_stride_0 b_stride_1
- attention: q_len kv_len prefix_len q_lens kv_lens q_heads kv_heads head_dim v_head_dim causal
           window_size q_dtype kv_dtype paged page_size has_bias
- moe:     tokens experts top_k hidden_size intermediate_size expert_parallel tensor_parallel
           projection routing routing_histogram
- config:  block_m block_n block_k group_m num_warps num_stages split_k num_ctas maxnreg
           config_extras config_known
- kernel:  kernel backend library library_version compiler_version kernel_source_hash is_library
           selection
- time:    latency_us latency_statistic latency_min_us latency_max_us latency_spread distinct_us
           distinct_repeats raw_rows samples timing_method protocol_version l2_state
- end:     outcome outcome_reason verified compile_time_s registers_per_thread spill_bytes
           smem_bytes
- device:  device_source gpu device_inferred driver_version sm_clock_before_mhz ... (see GROUPS)
- gates, and where the row comes from: gates source source_file source_sha256 source_row

A column that a source is silent about is null. Values are data only; nothing here is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import CorruptFileError, MissingDataError, SchemaMismatchError, closest
from perfmodel.files import atomic_path

SCHEMA_VERSION = 1

_VERSION_KEY = b"perfmodel.schema_version"
_INFO_KEY = b"perfmodel.table"

TEXT, INT, FLOAT, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True)
class Column:
    """One column: its name, arrow type, meaning and unit; ``required`` ones hold no nulls."""

    name: str
    type: pa.DataType
    about: str
    required: bool = False


GROUPS: Mapping[str, tuple[Column, ...]] = {
    "what": (
        Column("family", TEXT, "gemm, attention, grouped_gemm or elementwise", required=True),
        Column("phase", TEXT, "prefill, decode or mixed"),
        Column("direction", TEXT, "forward or backward"),
    ),
    "gemm": (
        Column("m", INT, "rows of A and C"),
        Column("n", INT, "columns of B and C"),
        Column("k", INT, "columns of A, rows of B"),
        Column("batch", INT, "independent products; sequences for attention"),
        Column("a_dtype", TEXT, "A's type (activations), short name; tf32 = fp32 on tensor units"),
        Column("b_dtype", TEXT, "B's type (weights), short name"),
        Column("out_dtype", TEXT, "the result's type, short name"),
        Column("a_layout", TEXT, "row (last index contiguous) or col"),
        Column("b_layout", TEXT, "row (last index contiguous) or col"),
        Column("lda", INT, "leading stride of A in elements"),
        Column("ldb", INT, "leading stride of B in elements"),
        Column("a_stride_0", INT, "stride of A's first index as the source gives it, elements"),
        Column("a_stride_1", INT, "stride of A's second index, elements"),
        Column("b_stride_0", INT, "stride of B's first index, elements"),
        Column("b_stride_1", INT, "stride of B's second index, elements"),
    ),
    "attention": (
        Column("q_len", INT, "query tokens a sequence; null where q_lens is given"),
        Column("kv_len", INT, "key tokens a sequence, prefix included"),
        Column("prefix_len", INT, "of these, tokens already in the KV cache"),
        Column("q_lens", pa.list_(INT), "query tokens of each sequence where they differ"),
        Column("kv_lens", pa.list_(INT), "key tokens of each sequence where they differ"),
        Column("q_heads", INT, "query heads"),
        Column("kv_heads", INT, "key and value heads (equal to q_heads for MHA)"),
        Column("head_dim", INT, "logical size of a query or key head"),
        Column("v_head_dim", INT, "logical size of a value head"),
        Column("causal", FLAG, "queries see earlier keys only"),
        Column("window_size", INT, "keys a query sees at most; null without a window"),
        Column("q_dtype", TEXT, "type of the queries and of the arithmetic, short name"),
        Column("kv_dtype", TEXT, "type in which keys and values are stored, short name"),
        Column("paged", FLAG, "the KV cache is in pages"),
        Column("page_size", INT, "tokens a page"),
        Column("has_bias", FLAG, "a bias or mask tensor is added to the scores"),
    ),
    "grouped_gemm": (
        Column("tokens", INT, "tokens routed"),
        Column("experts", INT, "experts in all"),
        Column("top_k", INT, "experts a token goes to"),
        Column("hidden_size", INT, "model width"),
        Column("intermediate_size", INT, "width of one expert, whole"),
        Column("expert_parallel", INT, "devices over which the experts are shared out"),
        Column("tensor_parallel", INT, "devices over which each expert is cut"),
        Column("projection", TEXT, "w13, w2 or both"),
        Column("routing", TEXT, "name of the distribution of tokens over experts"),
        Column("routing_histogram", pa.list_(INT), "tokens of each local expert where known"),
    ),
    "config": (
        Column("block_m", INT, "tile rows (queries for attention), elements"),
        Column("block_n", INT, "tile columns (keys for attention), elements"),
        Column("block_k", INT, "tile depth, elements"),
        Column("group_m", INT, "tile rows launched together for L2 reuse"),
        Column("num_warps", INT, "warps a block"),
        Column("num_stages", INT, "pipeline stages"),
        Column("split_k", INT, "parts of the reduction"),
        Column("num_ctas", INT, "blocks a cluster"),
        Column("maxnreg", INT, "register cap a thread; null when not set"),
        Column("config_extras", pa.map_(TEXT, TEXT), "all other parameters, values as JSON"),
        Column("config_known", FLAG, "the launch parameters are known", required=True),
    ),
    "kernel": (
        Column("kernel", TEXT, "name of the kernel or template"),
        Column("backend", TEXT, "triton, cublas, flash_attention_3, ...", required=True),
        Column("library", TEXT, "framework or library that ran it"),
        Column("library_version", TEXT, "its version"),
        Column("compiler_version", TEXT, "triton, ptxas or other compiler versions"),
        Column("kernel_source_hash", TEXT, "hash of the kernel's source"),
        Column("is_library", FLAG, "a closed kernel whose tile is not ours", required=True),
        Column("selection", TEXT, "full, near_best, winner or default_rule", required=True),
    ),
    "time": (
        Column("latency_us", FLOAT, "the label, microseconds; null unless outcome is ok"),
        Column("latency_statistic", TEXT, "median_of_distinct, median, mean, min or single"),
        Column("latency_min_us", FLOAT, "smallest value behind the label, microseconds"),
        Column("latency_max_us", FLOAT, "largest value behind the label, microseconds"),
        Column("latency_spread", FLOAT, "(max - min) / label, a fraction; null for one value"),
        Column("distinct_us", pa.list_(FLOAT), "the distinct values in the source, ascending"),
        Column("distinct_repeats", INT, "how many distinct values there are"),
        Column("raw_rows", INT, "rows of the source behind this one"),
        Column("samples", INT, "timed launches behind each value"),
        Column("timing_method", TEXT, "events or cuda_graph: whether a launch's overhead counts"),
        Column("protocol_version", INT, "version of our own timing protocol"),
        Column("l2_state", TEXT, "cold (flushed) or warm"),
    ),
    "end": (
        Column("outcome", TEXT, "one of perfmodel.dataset.outcome.Outcome", required=True),
        Column("outcome_reason", TEXT, "why it failed, as far as the source says"),
        Column("verified", FLAG, "its result was checked against a reference"),
        Column("compile_time_s", FLOAT, "time to compile, seconds"),
        Column("registers_per_thread", INT, "registers of the compiled kernel"),
        Column("spill_bytes", INT, "bytes a thread spills"),
        Column("smem_bytes", INT, "shared memory a block"),
    ),
    "device": (
        Column("device_source", TEXT, "the device in the source's own words"),
        Column("gpu", TEXT, "canonical device name; null where it cannot be told"),
        Column(
            "device_inferred", FLAG, "we inferred the exact device; the source does not state it"
        ),
        Column("driver_version", TEXT, "driver version"),
        Column("sm_clock_before_mhz", FLOAT, "SM clock before the measurement"),
        Column("sm_clock_after_mhz", FLOAT, "SM clock after it"),
        Column("memory_clock_before_mhz", FLOAT, "memory clock before the measurement"),
        Column("memory_clock_after_mhz", FLOAT, "memory clock after it"),
        Column("temperature_before_c", FLOAT, "temperature before the measurement, Celsius"),
        Column("temperature_after_c", FLOAT, "temperature after it"),
        Column("power_before_w", FLOAT, "board power before the measurement, watts"),
        Column("power_after_w", FLOAT, "board power after it"),
        Column("throttle_before", TEXT, "throttle reasons before, comma-separated; empty for none"),
        Column("throttle_after", TEXT, "throttle reasons after"),
    ),
    "origin": (
        Column("gates", TEXT, "quality gates that fired, comma-separated; null for none"),
        Column("source", TEXT, "registry name or the collector's name", required=True),
        Column("source_file", TEXT, "file (and archive member) the row comes from"),
        Column("source_sha256", TEXT, "checksum of the file that was read"),
        Column("source_row", INT, "first record of the file behind this row, counted from 0"),
    ),
}

COLUMNS: Mapping[str, Column] = {c.name: c for group in GROUPS.values() for c in group}

CONFIG_COLUMNS: tuple[str, ...] = tuple(
    c.name for c in GROUPS["config"] if c.name not in ("config_extras", "config_known")
)

PROBLEM_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm": tuple(c.name for c in GROUPS["gemm"]),
    "attention": (
        "phase", "direction", "batch", "out_dtype", *(c.name for c in GROUPS["attention"]),
    ),
    "grouped_gemm": ("a_dtype", "b_dtype", "out_dtype", *(c.name for c in GROUPS["grouped_gemm"])),
}  # fmt: skip
"""Columns that tell one problem of a family from another."""

ALLOWED: Mapping[str, frozenset[str]] = {
    "family": frozenset({"gemm", "attention", "grouped_gemm", "elementwise"}),
    "outcome": frozenset(o.value for o in Outcome),
    "selection": frozenset({"full", "near_best", "winner", "default_rule"}),
    "a_layout": frozenset({"row", "col"}),
    "b_layout": frozenset({"row", "col"}),
}


def arrow_schema() -> pa.Schema:
    """Return the parquet schema, columns in the order of ``GROUPS``."""
    return pa.schema([pa.field(c.name, c.type) for c in COLUMNS.values()])


@dataclass(frozen=True)
class TableInfo:
    """What a table says about itself, kept in its parquet metadata.

    ``files`` maps each source file to its sha256; ``gates`` is the quality report as plain data.
    """

    source: str
    files: Mapping[str, str]
    importer: str
    importer_version: int
    licence: str | None = None
    gates: Mapping[str, Any] | None = None
    schema_version: int = SCHEMA_VERSION


def conform(frame: pd.DataFrame) -> pa.Table:
    """Return ``frame`` as a table of schema v1: absent columns become null, types are checked.

    Raises:
        SchemaMismatchError: an unknown column, a value of another type, a null in a required
            column, or a value outside the allowed ones.
    """
    unknown = [name for name in frame.columns if name not in COLUMNS]
    if unknown:
        raise SchemaMismatchError(
            f"measurement table has unknown column {unknown[0]!r}{closest(unknown[0], COLUMNS)}; "
            f"schema v{SCHEMA_VERSION} knows: {', '.join(COLUMNS)}"
        )
    arrays = [_array(frame, column) for column in COLUMNS.values()]
    return pa.Table.from_arrays(arrays, schema=arrow_schema())


def write(frame: pd.DataFrame, path: Path, info: TableInfo) -> None:
    """Write ``frame`` as a schema v1 parquet file with ``info`` in its metadata, atomically."""
    write_parts([conform(frame)], path, info)


def write_parts(parts: Iterable[pa.Table], path: Path, info: TableInfo) -> None:
    """Write tables that `conform` returned, one after the other, as one file, atomically."""
    described = {k: v for k, v in vars(info).items() if k != "schema_version"}
    kept = arrow_schema().with_metadata(
        {
            _VERSION_KEY: str(info.schema_version).encode(),
            _INFO_KEY: json.dumps(described, sort_keys=True, default=dict).encode(),
        }
    )
    with atomic_path(path) as partial, pq.ParquetWriter(partial, kept, compression="zstd") as out:
        for part in parts:
            out.write_table(part.replace_schema_metadata(kept.metadata))


def read(
    path: Path, columns: list[str] | None = None, filters: list[tuple[str, str, Any]] | None = None
) -> pd.DataFrame:
    """Read a table of schema v1, or the named columns of the rows that pass all ``filters``.

    A filter is (column, operator, value): ``("a_dtype", "in", ["bf16"])``.
    With a table of millions of rows, name columns and filters: all of it takes gigabytes.
    Integer columns with nulls come as float64 with NaN, as pandas has it. ``frame.attrs["info"]``
    holds the table's `TableInfo`.

    Raises:
        MissingDataError: no such file.
        CorruptFileError: not a readable parquet file.
        SchemaMismatchError: not a measurement table, or of another version.
    """
    info = read_info(path)
    try:
        table = pq.read_table(path, columns=columns, filters=filters)
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{path} cannot be read as parquet: {error}") from error
    frame: pd.DataFrame = table.to_pandas()
    frame.attrs["info"] = info
    return frame


def read_parts(path: Path, columns: list[str] | None = None) -> Iterator[pd.DataFrame]:
    """Read a table like `read`, a part of its rows at a time."""
    read_info(path)
    try:
        with pq.ParquetFile(path) as table:
            for group in range(table.num_row_groups):
                yield table.read_row_group(group, columns=columns).to_pandas()
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{path} cannot be read as parquet: {error}") from error


def read_info(path: Path) -> TableInfo:
    """Read only what the table says about itself; raises like `read`."""
    if not path.is_file():
        raise MissingDataError(f"no measurement table at {path}")
    try:
        found = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{path} is not a readable parquet file: {error}") from error
    metadata = found.metadata or {}
    version = metadata.get(_VERSION_KEY)
    if version is None:
        raise SchemaMismatchError(
            f"{path} is not a perfmodel measurement table (its metadata names no schema version); "
            "write it with perfmodel.dataset.schema.write"
        )
    if version != str(SCHEMA_VERSION).encode():
        raise SchemaMismatchError(
            f"{path} has measurement schema version {version.decode(errors='replace')}; this "
            f"perfmodel reads version {SCHEMA_VERSION}. Import the data again, or use the "
            "perfmodel that wrote it"
        )
    expected = arrow_schema()
    for field in found:
        if field.name not in expected.names:
            raise SchemaMismatchError(f"{path} has unknown column {field.name!r}")
    for field in expected:
        if field.name not in found.names or found.field(field.name).type != field.type:
            have = found.field(field.name).type if field.name in found.names else "missing"
            raise SchemaMismatchError(
                f"{path}: column {field.name!r} is {have}; "
                f"schema v{SCHEMA_VERSION} has {field.type}"
            )
    try:
        return TableInfo(**json.loads(metadata[_INFO_KEY]))
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaMismatchError(f"{path} has unreadable table metadata: {error}") from error


def _array(frame: pd.DataFrame, column: Column) -> pa.Array:
    if column.name not in frame.columns:
        array = pa.nulls(len(frame), column.type)
    else:
        try:
            array = pa.array(frame[column.name], type=column.type, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatchError(
                f"column {column.name!r} ({column.about}) cannot be {column.type}: {error}"
            ) from error
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
    if column.required and array.null_count:
        raise SchemaMismatchError(
            f"column {column.name!r} ({column.about}) has {array.null_count} nulls; "
            "every row needs a value"
        )
    if column.name in ALLOWED:
        allowed = ALLOWED[column.name]
        foreign = set(array.unique().to_pylist()) - allowed - {None}
        if foreign:
            raise SchemaMismatchError(
                f"column {column.name!r} holds {sorted(foreign)[0]!r}; "
                f"use one of: {', '.join(sorted(allowed))}"
            )
    return array
