"""A kernel as text that another process can run, its callees and constants included.

A worker must not import the user's script, which would run it again: it gets the sources of the
functions that the kernel reaches, and nothing else.
"""

from __future__ import annotations

import ast
import enum
import inspect
import linecache
import textwrap
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from perfmodel.errors import KernelNotPortableError, NotInstalledError

_PLAIN = (int, float, str, bool, type(None))
_OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug")
_SPLIT = "\n\n"


@dataclass(frozen=True)
class PortableFunction:
    """One function: its text from ``def`` on, where it began, and how it was decorated.

    The line counts: Triton's cache key holds it, and a worker's compilation is to be found again.
    """

    name: str
    text: str
    line: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PortableKernel:
    """A module's worth of source: imports and constants, then functions, callees first.

    ``name`` is the kernel's; ``origin`` says where it is from, for messages.
    """

    name: str
    origin: str
    header: str
    functions: tuple[PortableFunction, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PortableKernel:
        """Build from what `to_dict` returned."""
        functions = tuple(PortableFunction(**f) for f in values["functions"])
        return cls(values["name"], values["origin"], values["header"], functions)

    def text(self) -> str:
        """Return the whole as text: what tells it from another kernel."""
        parts = [self.header, *(f"# line {f.line} {f.options}\n{f.text}" for f in self.functions)]
        return _SPLIT.join(parts)


def portable(kernel: Any) -> PortableKernel:
    """Return the text of a ``@triton.jit`` kernel, whatever is decorated on top of it.

    Raises:
        KernelNotPortableError: it has no source, or refers to something that text cannot carry
            (an object made at run time); the message names it.
    """
    while not _is_jit(kernel) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    found = _Collected()
    found.add(kernel)
    name = kernel.fn.__name__ if _is_jit(kernel) else kernel.__name__
    header = "\n".join(dict.fromkeys(found.header))
    return PortableKernel(name, _file_of(kernel), header, tuple(found.functions))


def load(kernel: PortableKernel) -> Any:
    """Return the kernel, made from its text in this process.

    Raises:
        NotInstalledError: Triton is absent.
    """
    try:
        import triton  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise NotInstalledError(
            f"kernel {kernel.name!r} needs Triton, which is not installed; "
            "install it with: pip install 'perfmodel[triton]'"
        ) from error
    scope: dict[str, Any] = {"__name__": f"perfmodel_portable_{abs(hash(kernel.text()))}"}
    exec(compile(kernel.header, f"<{kernel.name}: imports>", "exec"), scope)
    for function in kernel.functions:
        # Python finds the source of a function by file and line: this file is in memory alone.
        file = f"<{function.name} of {kernel.name}>"
        lines = function.text.splitlines(keepends=True)
        linecache.cache[file] = (len(function.text), None, lines, file)
        exec(compile(function.text, file, "exec"), scope)
        plain = scope[function.name]
        options = dict(function.options)
        decorator = options.pop("decorator")
        if decorator is not None:
            made = getattr(triton, decorator)
            made = made(**options)(plain) if options else made(plain)
            made.starting_line_number = function.line
            scope[function.name] = made
    return scope[kernel.name]


class _Collected:
    """Functions in the order in which they must be defined."""

    def __init__(self) -> None:
        self.header: list[str] = []
        self.functions: list[PortableFunction] = []
        self._named: dict[str, int] = {}  # name -> id of what it stands for
        self._kept: list[Any] = []

    def add(self, function: Any) -> None:
        plain = function.fn if _is_jit(function) else function
        name = plain.__name__
        if self._claim(name, plain, plain):
            return
        text, line = _source(function, plain)
        for used, value in _names(text, plain).items():
            self._need(used, value, plain)
        options: dict[str, Any] = {"decorator": _decorator(function)}
        for option in _OPTIONS:
            value = getattr(function, option, None)
            if value:
                options[option] = list(value) if isinstance(value, list | tuple | set) else value
        self.functions.append(PortableFunction(name, text, line, options))

    def _need(self, name: str, value: Any, user: Any) -> None:
        if isinstance(value, types.ModuleType):
            self._claim(name, value, user)
            self.header.append(f"import {value.__name__} as {name}")
        elif _is_jit(value) and not _is_tritons(value.fn):
            if value.fn.__name__ != name:  # imported under another name
                raise _not_portable(user, name, "is called otherwise where it is defined")
            self.add(value)
        elif (module := _home(value)) is not None:
            self._claim(name, value, user)
            at = getattr(value, "__qualname__", None) or value.__name__
            self.header.append(f"from {module} import {at} as {name}")
        elif (literal := _literal(value)) is not None:
            if not self._claim(name, value, user, literal):
                self.header.append(f"{name} = {literal}")
            if literal.startswith("_tl."):
                self.header.insert(0, "import triton.language as _tl")
        else:
            raise _not_portable(user, name, f"is {type(value).__name__}, which text cannot carry")

    def _claim(self, name: str, value: Any, user: Any, literal: str | None = None) -> bool:
        """Take a name; return whether it stands for this already."""
        mark = hash(literal) if literal is not None else id(value)
        if name in self._named:
            if self._named[name] != mark:
                raise _not_portable(user, name, "means different things in its callees")
            return True
        self._named[name] = mark
        self._kept.append(value)
        return False


def _source(function: Any, plain: Any) -> tuple[str, int]:
    source, line = getattr(function, "src", None), getattr(function, "starting_line_number", None)
    if isinstance(source, str) and isinstance(line, int):
        return source, line
    try:
        lines, line = inspect.getsourcelines(plain)
    except (OSError, TypeError) as error:
        raise KernelNotPortableError(
            f"kernel {plain.__qualname__!r} has no source to send to a worker ({error}); "
            "define it in a file"
        ) from error
    text = textwrap.dedent("".join(lines))
    starts = [i for i, t in enumerate(text.splitlines()) if t.startswith(("def ", "async def "))]
    return "\n".join(text.splitlines()[starts[0] if starts else 0 :]), line


def _names(text: str, plain: Any) -> dict[str, Any]:
    """The globals and enclosing variables that a function reads, by name; annotations aside."""
    scope = plain.__globals__ | dict(inspect.getclosurevars(plain).nonlocals)
    definition = ast.parse(text).body[0]
    assert isinstance(definition, ast.FunctionDef)
    arguments = {a.arg for a in ast.walk(definition.args) if isinstance(a, ast.arg)}
    for a in ast.walk(definition.args):
        if isinstance(a, ast.arg):
            a.annotation = None  # read as text alone
    read = [n.id for n in ast.walk(definition) if isinstance(n, ast.Name)]
    return {
        name: scope[name]
        for name in dict.fromkeys(read)
        if name in scope and name not in arguments and name != plain.__name__
    }


def _literal(value: Any) -> str | None:
    """The expression that makes a constant anew, ``None`` where there is none."""
    kind = type(value).__name__
    if kind == "constexpr" and hasattr(value, "value"):
        inner = _literal(value.value)
        return None if inner is None else f"_tl.constexpr({inner})"
    if kind == "dtype" and type(value).__module__.startswith("triton.language"):
        return f"_tl.dtype({value.name!r})"
    if isinstance(value, tuple | list):
        items = [_literal(item) for item in value]
        body = "".join(f"{item}, " for item in items)
        whole = f"({body})" if isinstance(value, tuple) else f"[{body}]"
        return None if None in items else whole
    if isinstance(value, enum.Enum) or not isinstance(value, _PLAIN):
        return None
    # Infinities and NaN have no literal.
    return f"float({str(value)!r})" if isinstance(value, float) else repr(value)


def _home(value: Any) -> str | None:
    """The installed module that a name can be imported from: Triton's own, and builtins."""
    plain = value.fn if _is_jit(value) else value
    module = getattr(plain, "__module__", None)
    named = getattr(plain, "__qualname__", None) or getattr(plain, "__name__", None)
    if not isinstance(module, str) or not isinstance(named, str) or "." in named:
        return None
    is_installed = _is_tritons(plain) or module in ("builtins", "math", "functools", "operator")
    return module if is_installed else None


def _is_tritons(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "triton"


def _is_jit(value: Any) -> bool:
    """Whether it is ``triton.jit``'s object, compiled or interpreted."""
    kinds = {"JITFunction", "InterpretedFunction", "ConstexprFunction"}
    return bool(kinds & {c.__name__ for c in type(value).__mro__}) and hasattr(value, "fn")


def _decorator(value: Any) -> str | None:
    if not _is_jit(value):
        return None
    constexpr = "ConstexprFunction" in {c.__name__ for c in type(value).__mro__}
    return "constexpr_function" if constexpr else "jit"


def _file_of(kernel: Any) -> str:
    plain = kernel.fn if _is_jit(kernel) else kernel
    return f"{plain.__module__}.{plain.__qualname__}"


def _not_portable(user: Any, name: str, why: str) -> KernelNotPortableError:
    return KernelNotPortableError(
        f"kernel {user.__qualname__!r} cannot be sent to a worker: {name!r} {why}; make it an "
        "argument of the kernel or a constant of its module, or time in this process"
    )
