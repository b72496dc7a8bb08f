"""Compare engines that can walk the shipped model's trees: speed on one core, start, size.

Prints the table of the README's section "Inference engine". Engines that are not installed are
left out; install them with:  pip install xgboost-cpu onnxruntime onnx treelite
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.catalog import load_gpu
from perfmodel.launches import gemm_launches
from perfmodel.learned.artifact import load_model
from perfmodel.learned.forest import Forest
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.space import candidate_configs

ROWS = (30, 1000)
TOLERANCE = 1e-4
"""Engines add up hundreds of float32 leaves in orders of their own."""

Rows = NDArray[np.float32]
Engine = Callable[[Rows], NDArray[Any]]

# What the base install holds without an engine; an engine's own size is what comes on top.
ENGINE_FREE = ("numpy", "pandas", "pyarrow", "typer", "rich", "platformdirs", "filelock")


def wasm(forest: Forest) -> Engine:
    """Return our own walker, as the package runs it."""
    return forest.predict


def numpy_only(forest: Forest) -> Engine:
    """Return a walk of all trees and rows at once, a level at a time, in numpy."""
    leaf = forest.feature < 0
    column = np.where(leaf, 0, forest.feature).astype(np.intp)
    own = np.arange(len(leaf), dtype=np.intp)
    left = np.where(leaf, own, forest.left).astype(np.intp)
    split = np.where(leaf, np.float32(np.inf), forest.threshold)  # a leaf stays where it is

    def predict(rows: Rows) -> NDArray[Any]:
        node = np.tile(forest.roots.astype(np.intp), (len(rows), 1))
        while True:
            value = np.take_along_axis(rows, column[node], axis=1)
            after = left[node] + (value >= split[node])
            if np.array_equal(after, node):
                return forest.threshold[node].sum(axis=1, dtype=np.float64) + forest.base
            node = after

    return predict


def xgboost_json(forest: Forest) -> bytes:
    """Return the forest as a model of xgboost; the frame comes from a booster of one tree."""
    import xgboost  # noqa: PLC0415 - one of the engines

    data = xgboost.DMatrix(np.zeros((2, forest.features), dtype=np.float32), np.array([0.0, 1.0]))
    tiny = xgboost.train({"max_depth": 1, "base_score": 0.0}, data, 1)
    model = json.loads(bytes(tiny.save_raw("json")))
    learner = model["learner"]
    learner["learner_model_param"]["base_score"] = f"[{forest.base!r}]"
    booster = learner["gradient_booster"]["model"]
    trees = [_tree(forest, i) for i in range(len(forest.roots))]
    booster["trees"] = trees
    booster["tree_info"] = [0] * len(trees)
    booster["iteration_indptr"] = list(range(len(trees) + 1))
    booster["gbtree_model_param"]["num_trees"] = str(len(trees))
    return json.dumps(model).encode()


def _tree(forest: Forest, i: int) -> dict[str, Any]:
    start = int(forest.roots[i])
    end = int(forest.roots[i + 1]) if i + 1 < len(forest.roots) else len(forest.threshold)
    feature = forest.feature[start:end]
    leaf, count = feature < 0, end - start
    left = np.where(leaf, -1, forest.left[start:end] - start)
    parents = np.full(count, 2**31 - 1)
    inner = np.flatnonzero(~leaf)
    parents[left[inner]] = parents[left[inner] + 1] = inner
    return {
        "base_weights": forest.expected[start:end].tolist(),
        "categories": [], "categories_nodes": [], "categories_segments": [],
        "categories_sizes": [], "default_left": [0] * count, "id": i,
        "left_children": left.tolist(), "right_children": np.where(leaf, -1, left + 1).tolist(),
        "loss_changes": [0.0] * count, "parents": parents.tolist(),
        "split_conditions": forest.threshold[start:end].tolist(),
        "split_indices": np.where(leaf, 0, feature).tolist(), "split_type": [0] * count,
        "sum_hessian": [1.0] * count,
        "tree_param": {
            "num_deleted": "0", "num_feature": str(forest.features), "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
    }  # fmt: skip


def xgboost_inplace(forest: Forest) -> Engine:
    """Return xgboost's predictor on an array, without a DMatrix."""
    import xgboost  # noqa: PLC0415 - one of the engines

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(xgboost_json(forest)))
    return booster.inplace_predict  # type: ignore[no-any-return]  # xgboost is untyped


def treelite_gtil(forest: Forest) -> Engine:
    """Return treelite's general tree inference."""
    import treelite  # noqa: PLC0415 - one of the engines

    model = treelite.frontend.from_xgboost_json(xgboost_json(forest))
    return lambda rows: treelite.gtil.predict(model, rows, nthread=1)


def onnx_runtime(forest: Forest) -> Engine:
    """Return ONNX Runtime on a TreeEnsembleRegressor."""
    import onnx  # noqa: PLC0415 - one of the engines
    import onnxruntime  # noqa: PLC0415 - one of the engines

    ends = np.append(forest.roots[1:], len(forest.threshold))
    tree = np.repeat(np.arange(len(forest.roots)), np.diff(np.append(forest.roots, ends[-1])))
    node = np.arange(len(tree)) - forest.roots[tree]
    leaf = forest.feature < 0
    left = np.where(leaf, 0, forest.left - forest.roots[tree])
    step = onnx.helper.make_node(
        "TreeEnsembleRegressor", ["rows"], ["sums"], domain="ai.onnx.ml", n_targets=1,
        aggregate_function="SUM", base_values=[float(forest.base)], post_transform="NONE",
        nodes_treeids=tree.tolist(), nodes_nodeids=node.tolist(),
        nodes_featureids=np.where(leaf, 0, forest.feature).tolist(),
        nodes_modes=np.where(leaf, "LEAF", "BRANCH_LT").tolist(),
        nodes_values=np.where(leaf, 0, forest.threshold).tolist(),
        nodes_truenodeids=left.tolist(), nodes_falsenodeids=np.where(leaf, 0, left + 1).tolist(),
        target_treeids=tree[leaf].tolist(), target_nodeids=node[leaf].tolist(),
        target_ids=[0] * int(leaf.sum()), target_weights=forest.threshold[leaf].tolist(),
    )  # fmt: skip
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [step],
        "forest",
        [onnx.helper.make_tensor_value_info("rows", kind, [None, forest.features])],
        [onnx.helper.make_tensor_value_info("sums", kind, [None, 1])],
    )
    versions = [onnx.helper.make_opsetid("ai.onnx.ml", 3), onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=versions, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda rows: np.asarray(session.run(None, {"rows": rows})[0])


# name, module to import, distribution, engine
ENGINES: tuple[tuple[str, str, str, Callable[[Forest], Engine]], ...] = (
    ("wasmtime, our walker", "wasmtime", "wasmtime", wasm),
    ("xgboost `inplace_predict`", "xgboost", "xgboost-cpu", xgboost_inplace),
    ("ONNX Runtime", "onnxruntime", "onnxruntime", onnx_runtime),
    ("treelite GTIL", "treelite", "treelite", treelite_gtil),
    ("numpy, a level at a time", "numpy", "numpy", numpy_only),
)


def model_rows() -> Rows:
    """Return features of real launches: the candidates of one problem on an H100."""
    problem, gpu = Gemm(4096, 4096, 4096, a_dtype="bf16"), load_gpu("h100-sxm5")
    configs = candidate_configs(problem, gpu)
    found = gemm_launches(GemmTable.of(problem), configs, gpu, with_features=True)
    assert found.features is not None
    order = np.random.default_rng(0).permutation(len(found.features))
    return np.ascontiguousarray(found.features[order])


def fastest_ms(engine: Engine, rows: Rows, seconds: float) -> float:
    """Return the fastest of repeated calls: what else the machine does can only add."""
    engine(rows)
    fastest = np.inf
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        engine(rows)
        fastest = min(fastest, time.perf_counter() - start)
    return float(fastest) * 1e3


def import_s(module: str, repeats: int = 15) -> float:
    """Return what importing ``module`` adds to importing numpy, by the fastest processes."""
    fastest = {}
    for code in [f"import numpy, {module}", "import numpy"] * repeats:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        fastest[code] = min(fastest.get(code, np.inf), time.perf_counter() - start)
    with_it, without = fastest.values()
    return max(with_it - without, 0.0)


def added_mb(name: str) -> float:
    """Return the size of a distribution and all it needs, less what the base install has anyway."""
    new = _with_needs(name) - set().union(*(_with_needs(base) for base in ENGINE_FREE))
    size = 0
    for each in new:
        for file in distribution(each).files or ():
            path = file.locate()
            size += os.path.getsize(path) if os.path.isfile(path) else 0
    return size / 1e6


def _with_needs(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    name = re.sub(r"[-_.]+", "-", name).lower()
    try:
        needs = distribution(name).requires or []
    except PackageNotFoundError:
        return set()
    found = {name}
    for need in needs:
        other = re.split(r"[^\w.-]", need, maxsplit=1)[0]
        if "extra ==" not in need and other not in seen | found:
            found |= _with_needs(other, seen | found)
    return found


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each cell in each round")
    parser.add_argument("--rounds", type=int, default=8, help="engines take turns")
    asked = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    forest, rows = load_model().time, model_rows()
    expected = forest.predict(rows)
    engines = {}
    for label, module, package, make in ENGINES:
        if find_spec(module) is None:
            print(f"{label}: not installed", file=sys.stderr)
            continue
        engines[label, module, package] = engine = make(forest)
        np.testing.assert_allclose(np.ravel(engine(rows)), expected, atol=TOLERANCE)
    cells = {(key, n): np.inf for key in engines for n in ROWS}
    for _ in range(asked.rounds):
        for (key, n), fastest in cells.items():
            cells[key, n] = min(fastest, fastest_ms(engines[key], rows[:n], asked.seconds))
    print(f"{len(forest.roots)} trees, {len(forest.threshold):,} nodes, {forest.features} features")
    print()
    print("| engine | 30 rows, ms | 1,000 rows, ms | import, s | adds, MB |")
    print("|---|---|---|---|---|")
    for label, module, package in engines:
        times = [cells[(label, module, package), n] for n in ROWS]
        start = 0.0 if module == "numpy" else import_s(module)
        size = 0.0 if module == "numpy" else added_mb(package)
        speed = " | ".join(f"{ms:.2f}" if ms < 10 else f"{ms:.0f}" for ms in times)
        version = distribution(package).version
        print(f"| {label} {version} | {speed} | {start:.2f} | {size:.0f} |")


if __name__ == "__main__":
    main()
