"""A kernel's identity: what its source and everything it refers to mean, not how they are laid out.

Comments, blank lines, docstrings, the file and the place in it do not count. A callee's body, a
global constant and a heuristic do. Triton's own library is left to the version of Triton.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment")
_DEEPEST = 20


def kernel_hash(fn: Any) -> str:
    """Return the identity of a kernel's meaning, 32 hexadecimal digits.

    Args:
        fn: a ``@triton.jit`` kernel, anything decorated on top of it, or the plain function.
    """
    return hashlib.sha256(_Description().of(fn).encode()).hexdigest()[:32]


def callable_text(function: Any) -> str:
    """Return what tells a hook from another: where it is from and what it does."""
    return hashlib.sha256(_Description().of(function).encode()).hexdigest()[:16]


class _Description:
    """Writes a function and all that it reaches, each function once, in order of first use."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._seen: dict[int, str] = {}
        self._kept: list[Any] = []  # ids stay taken while the objects live

    def of(self, fn: Any) -> str:
        self._parts.append(self._function(fn))
        return "\n".join(self._parts)

    def _function(self, fn: Any) -> str:
        """Describe ``fn`` unless that is done, and return its name here."""
        if isinstance(fn, functools.partial):
            given = self._value([list(fn.args), dict(fn.keywords)])
            return f"partial({self._function(fn.func)}, {given})"
        if isinstance(fn, types.MethodType):
            return f"method({self._function(fn.__func__)}, {self._value(fn.__self__)})"
        if inspect.isclass(fn) or isinstance(fn, types.BuiltinFunctionType):
            return _qualified(fn)
        wrappers, plain = _unwrap(fn)
        if id(fn) in self._seen:
            return self._seen[id(fn)]
        name = f"{getattr(plain, '__name__', type(plain).__name__)}#{len(self._seen)}"
        self._seen[id(fn)] = name
        self._kept.append(fn)
        lines = [f"[{name}]"]
        for wrapper in wrappers:
            lines += [
                f"{option}={self._value(found)}"
                for option in _OPTIONS
                if (found := getattr(wrapper, option, None))
            ]
            heuristics = getattr(wrapper, "values", None)
            if isinstance(heuristics, Mapping):
                lines += [f"heuristic {k}={self._value(v)}" for k, v in heuristics.items()]
        if not inspect.isfunction(plain):
            lines.append(self._value(plain) if not callable(plain) else _qualified(type(plain)))
            self._parts.append("\n".join(lines))
            return name
        tree = _tree(wrappers, plain)
        if tree is None:
            lines.append(self._code(plain.__code__))
            used: Iterator[tuple[str, ...]] = ((n,) for n in _names_of(plain.__code__))
        else:
            lines.append(_dump(tree))
            used = _chains(tree)
        scope = plain.__globals__ | _closure(plain)
        for chain in dict.fromkeys(used):
            found, value = _resolve(scope, chain)
            if found and not _is_tritons(value) and not isinstance(value, types.ModuleType):
                lines.append(f"{'.'.join(chain)}={self._value(value)}")
        # A default is bound when the function is defined; its expression does not tell.
        defaults = (plain.__defaults__, plain.__kwdefaults__)
        if any(defaults):
            lines.append(f"defaults={self._value(defaults)}")
        self._parts.append("\n".join(lines))
        return name

    def _value(self, value: Any, depth: int = 0) -> str:  # noqa: PLR0911 - a case a line
        if isinstance(value, enum.Enum):
            return f"{_qualified(type(value))}.{value.name}"
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__}:{value!r}"
        if depth > _DEEPEST:
            return _qualified(type(value))
        if type(value).__name__ == "constexpr" and hasattr(value, "value"):
            return f"constexpr({self._value(value.value, depth + 1)})"
        if isinstance(value, Mapping):
            items = sorted(
                (self._value(k, depth + 1), self._value(v, depth + 1)) for k, v in value.items()
            )
            return f"{{{', '.join(f'{k}: {v}' for k, v in items)}}}"
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(self._value(v, depth + 1) for v in value))}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._value(v, depth + 1) for v in value)}]"
        if _is_tritons(value):
            return f"triton {value}" if _is_tritons(type(value)) else _qualified(value)
        if callable(value) or hasattr(value, "fn"):
            return self._function(value)
        if hasattr(value, "__dict__"):
            return f"{_qualified(type(value))}{self._value(vars(value), depth + 1)}"
        text = repr(value)
        # An address says nothing that holds in another process.
        return _qualified(type(value)) if " at 0x" in text else f"{_qualified(type(value))}:{text}"

    def _code(self, code: types.CodeType) -> str:
        """What a function does, where its source cannot be had: a lambda, an interactive one."""
        constants = [
            self._code(c) if isinstance(c, types.CodeType) else self._value(c)
            for c in code.co_consts
        ]
        return f"code {code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _unwrap(fn: Any) -> tuple[list[Any], Any]:
    """The wrappers from the outside in, and the plain function."""
    wrappers: list[Any] = []
    while not inspect.isfunction(fn) and hasattr(fn, "fn") and len(wrappers) < _DEEPEST:
        wrappers.append(fn)
        fn = fn.fn
    return wrappers, fn


def _tree(wrappers: list[Any], plain: types.FunctionType) -> ast.AST | None:
    """The definition without decorators, ``None`` where there is no source to parse."""
    # Triton allows a kernel's source to be replaced.
    source = getattr(wrappers[-1], "src", None) if wrappers else None
    try:
        text = source if isinstance(source, str) else inspect.getsource(plain)
        body = ast.parse(textwrap.dedent(text)).body
    except (OSError, TypeError, SyntaxError):
        return None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    if body[0].name != plain.__name__:  # a lambda's lines are the whole statement around it
        return None
    body[0].decorator_list = []
    return body[0]


def _dump(node: Any) -> str:
    """One text for one meaning, whatever the version of Python: absent and empty fields left out.

    (`ast.dump` and `ast.unparse` change between versions.)
    """
    if isinstance(node, list):
        return f"[{','.join(_dump(item) for item in node if not _is_docstring(item))}]"
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__}:{node.value!r}"
    if isinstance(node, ast.AST):
        inner = (
            f"{field}={_dump(value)}"
            for field, value in ast.iter_fields(node)
            if field not in ("ctx", "type_comment", "kind") and value not in (None, [])
        )
        return f"{type(node).__name__}({','.join(inner)})"
    return repr(node)


def _is_docstring(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _chains(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Names and dotted names that are read and not local."""
    local = {
        name.id
        for name in ast.walk(tree)
        if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)
    } | {arg.arg for arg in ast.walk(tree) if isinstance(arg, ast.arg)}
    for node in ast.walk(tree):
        chain: list[str] = []
        at: ast.AST = node
        while isinstance(at, ast.Attribute):
            chain.append(at.attr)
            at = at.value
        if isinstance(at, ast.Name) and at.id not in local:
            yield (at.id, *reversed(chain))


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _closure(fn: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found


def _resolve(scope: Mapping[str, Any], chain: tuple[str, ...]) -> tuple[bool, Any]:
    """Follow ``module.name`` as far as modules go."""
    if chain[0] not in scope:
        return False, None
    value = scope[chain[0]]
    for name in chain[1:]:
        if not isinstance(value, types.ModuleType | type):
            break
        if not hasattr(value, name):
            return False, None
        value = getattr(value, name)
    return True, value


def _is_tritons(value: Any) -> bool:
    """Whether Triton defines it: then Triton's version says what it does."""
    named = value if isinstance(value, types.FunctionType | type) or hasattr(value, "fn") else None
    module = getattr(value if named is not None else type(value), "__module__", None) or ""
    if type(value).__name__ == "constexpr":
        return False
    if named is None and type(value).__module__.partition(".")[0] != "triton":
        return False
    return module.partition(".")[0] == "triton"


def _qualified(thing: Any) -> str:
    module = getattr(thing, "__module__", None)
    return f"{module}.{getattr(thing, '__qualname__', type(thing).__name__)}"
