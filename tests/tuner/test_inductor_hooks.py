from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import Buffer, FixedLayout
from torch._inductor.kernel.bmm import bmm_template
from torch._inductor.kernel.mm import mm_template
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx

import tuner
from perfmodel.errors import IllegalConfigError, InvalidConfigError, TuningWarning, UnknownGpuError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import ConfigTable, TileConfig
from tuner import inductor
from tuner.export.inductor_table import lookup_entry, lookup_key, to_inductor
from tuner.export.pick import pick

H100 = load_gpu("h100-sxm5")
ANALYTIC = Predictor(analytic_only=True)


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_hook_finalize_template_configs() -> None:
    assert parameters(InductorChoices._finalize_template_configs) == [
        "self", "template_choices", "kernel_inputs", "templates", "op_name", "kwarg_overrides",
    ]  # fmt: skip
    assert parameters(inductor.RankedChoices._finalize_template_configs) == parameters(
        InductorChoices._finalize_template_configs
    )


def test_hook_choices_handler_and_factory() -> None:
    assert config.inductor_choices_class is None
    choices = inductor.RankedChoices("h100-sxm5", predictor=ANALYTIC)
    with V.set_choices_handler(choices):
        assert V.choices is choices


def test_hook_kernel_inputs() -> None:
    assert parameters(MMKernelInputs.__init__) == [
        "self", "input_nodes", "scalars", "out_dtype", "mat1_idx", "mat2_idx",
    ]  # fmt: skip
    for name in ("mat1mat2", "mnk_hinted", "strides_hinted", "batch_hinted", "device"):
        assert parameters(getattr(MMKernelInputs, name)) == ["self"]


def test_hook_template_choice() -> None:
    assert parameters(KernelTemplateChoice.__init__) == [
        "self", "template", "params", "extra_kwargs", "layout", "inputs",
    ]  # fmt: skip


def test_hook_templates() -> None:
    assert (mm_template.uid, bmm_template.uid) == inductor.TEMPLATES


def test_hook_lookup_table() -> None:
    assert config.lookup_table.table is None
    assert parameters(LookupTableChoices._generate_kernel_inputs_key) == ["kernel_inputs"]
    assert parameters(LookupTableChoices.make_lookup_key) == [
        "self", "kernel_inputs", "op_name", "include_device",
    ]  # fmt: skip
    assert parameters(LookupTableChoices.lookup_template_configs) == [
        "self", "kernel_inputs", "op_name", "template_uids", "template_hash_map",
    ]  # fmt: skip


@pytest.fixture
def graph() -> Iterator[Any]:
    lowering = GraphLowering(make_fx(lambda: torch.zeros(2, 3))())
    with config.patch(max_autotune=True), V.set_graph_handler(lowering):
        yield lowering


def inputs(problem: Gemm, dtype: Any = None, device: str = "cuda:0") -> Any:
    """Inductor's inputs of a product, on a device that need not exist."""

    def buffer(name: str, rows: int, columns: int, layout: str, leading: int | None) -> Any:
        sizes, strides = [rows, columns], [leading, 1] if layout == "row" else [1, leading]
        if problem.batch > 1:
            between = (leading or 0) * (rows if layout == "row" else columns)
            sizes, strides = [problem.batch, *sizes], [between, *strides]
        kind = dtype or torch.bfloat16
        return Buffer(name=name, layout=FixedLayout(torch.device(device), kind, sizes, strides))

    return MMKernelInputs([
        buffer("a", problem.m, problem.k, problem.a_layout, problem.lda),
        buffer("b", problem.k, problem.n, problem.b_layout, problem.ldb),
    ])  # fmt: skip


PROBLEMS = [
    Gemm(4096, 1024, 2048),
    Gemm(64, 96, 128, a_layout="col", b_layout="col"),
    Gemm(64, 96, 128, lda=256, ldb=100),
    Gemm(64, 96, 128, batch=3),
    Gemm(64, 96, 128, batch=3, b_layout="col"),
]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_problem_is_read_from_inductors_inputs(graph: Any, problem: Gemm) -> None:
    assert inductor.problem_of(inputs(problem)) == problem


def test_products_unknown_to_the_model_are_left_alone(graph: Any) -> None:
    assert inductor.problem_of(inputs(PROBLEMS[0], torch.float8_e4m3fn)) is None
    assert inductor.problem_of(object()) is None


@pytest.mark.parametrize("problem", PROBLEMS)
def test_tb3_the_look_up_key_is_inductors_own(graph: Any, problem: Gemm) -> None:
    operation = "mm" if problem.batch == 1 else "bmm"
    ours = LookupTableChoices._generate_kernel_inputs_key(inputs(problem))
    assert lookup_key(problem) == f"{ours}+{operation}"


def template_choices(problem_inputs: Any, choices: Any) -> list[Any]:
    return list(choices.get_ktc(problem_inputs, mm_template, "mm"))


def finalized(choices: Any, given: Any, extra: list[Any]) -> list[Any]:
    generators = {"extern": iter(extra), "triton::mm": iter(template_choices(given, choices))}
    return choices._finalize_template_configs(generators, given, [mm_template], "mm")


class Extern:
    template = None


def test_inductor_times_only_the_models_best(graph: Any) -> None:
    problem = PROBLEMS[0]
    choices = inductor.RankedChoices(H100, top=2, predictor=ANALYTIC)
    given = inputs(problem)
    everything = [
        inductor.config_of(c.params.to_kwargs()) for c in template_choices(given, choices)
    ]
    assert len(everything) > 2
    extern = Extern()
    kept = finalized(choices, given, [extern])
    assert kept[0] is extern
    tiles = [inductor.config_of(c.params.to_kwargs()) for c in kept[1:]]
    ranking = ANALYTIC.rank(problem, H100, ConfigTable.of(everything))
    assert tiles == [candidate.config for candidate in ranking.candidates[:2]]


def test_no_device_known_leaves_inductors_choices_with_one_warning(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Nonesuch")
    choices = inductor.RankedChoices(predictor=ANALYTIC)
    given = inputs(PROBLEMS[0])
    with pytest.warns(TuningWarning, match="Nonesuch") as caught:
        kept = [finalized(choices, given, []) for _ in range(2)]
    assert len(caught) == 1
    assert {len(tiles) for tiles in kept} == {len(template_choices(given, choices))}


def test_inside_the_context_inductor_has_our_choices() -> None:
    with inductor.ranked_max_autotune("h100-sxm5", 4, ANALYTIC) as choices:
        assert V.choices is choices
        assert config.inductor_choices_class().uuid() == "perfmodel analytic h100-sxm5 top4"
    assert config.inductor_choices_class is None
    assert V.choices is not choices


def test_bad_arguments() -> None:
    with pytest.raises(InvalidConfigError, match="top is 0"):
        inductor.RankedChoices(H100, top=0)
    with pytest.raises(UnknownGpuError):
        inductor.RankedChoices("h1000")


def test_inductor_finds_our_entry_in_the_table(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(LookupTableChoices, "_get_device_key", staticmethod(lambda device: "any"))
    found = pick(PROBLEMS[0], H100, ANALYTIC)
    with inductor.lookup_table(to_inductor([found])) as choices:
        (kept,) = finalized(choices, inputs(PROBLEMS[0]), [])
    kwargs = kept.params.to_kwargs()
    assert kept.template is mm_template
    assert inductor.config_of(kwargs) == found.config
    assert kwargs["EVEN_K"] is True
    assert kwargs["ACC_TYPE"] == "tl.float32"  # Inductor's own, kept


def test_a_step_that_does_not_divide_k_is_said() -> None:
    assert lookup_entry(Gemm(8, 8, 100), TileConfig(block_k=64))["EVEN_K"] is False


def test_all_private_names_are_in_one_file() -> None:
    folder = Path(tuner.__file__).parent
    users = [p.name for p in folder.rglob("*.py") if "torch._inductor" in p.read_text()]
    assert users == ["inductor.py"]


def test_nothing_is_left_when_no_tile_can_be_taken() -> None:
    with pytest.raises(IllegalConfigError, match="no configuration"):
        pick(PROBLEMS[0], H100, ANALYTIC, keep=lambda config: False)
