"""The WebAssembly that walks trees: a dozen rows side by side, or for one row a dozen trees.

A node is 8 bytes: a float32 threshold, then 32 bits that hold the left child's address (upper 22)
and the byte offset of the feature within a row (lower 10). A step loads both, compares, and adds
8 for the right child; it has no branch. Leaves point at themselves, so that every row takes as
many steps as its tree is deep. A dozen walks hide each other's load latency; and while rows walk
one tree, every line of the next is asked for, since where a walk goes next no cache can foresee.
A row alone would not pay for those lines: it walks a dozen trees at once instead. Both ways add
the leaves in the order of the trees, so that they answer alike to the last bit.
"""

from __future__ import annotations

LANES = 12
"""Rows or trees walked side by side."""

LINE_BYTES = 64
"""What a cache fetches at once."""

ARGUMENTS = ("rows", "count", "stride", "roots", "depths", "trees", "sums")
"""Addresses and sizes, 32 bits each, that a walk reads from the start of memory: handing them over
in the call would cost more than walking a few rows. There are `LANES` more depths, of 0, and roots,
of the one leaf of 0 that lies behind all trees."""

_LANES = range(LANES)

_ARGUMENTS = "".join(
    f"(local.set ${name} (i32.load offset={4 * i} (i32.const 0)))"
    for i, name in enumerate(ARGUMENTS)
)

_LOCALS = """
  (local $rows i32) (local $count i32) (local $stride i32)
  (local $roots i32) (local $depths i32) (local $trees i32) (local $sums i32)
  (local $tree i32) (local $row i32) (local $at i32) (local $sum i32)
  (local $root i32) (local $depth i32) (local $left i32)
  (local $ahead i32) (local $ahead_end i32) (local $seen i32) (local $total f32)
""" + "".join(f"(local $node{i} i32) (local $packed{i} i32) (local $x{i} i32)" for i in _LANES)

_STEP = """
  (local.set $node{i} (i32.add
   (i32.shr_u (local.get $packed{i}) (i32.const 10))
   (i32.shl (i32.eqz (f32.lt
     (f32.load (i32.add (local.get $x{i}) (i32.and (local.get $packed{i}) (i32.const 0x3fc))))
     (f32.load (local.get $node{i})))) (i32.const 3))))"""

_DOWN = f"""
  (block $at_leaf (loop $down
   (br_if $at_leaf (i32.eqz (local.get $left)))
   {"".join(f"(local.set $packed{i} (i32.load offset=4 (local.get $node{i})))" for i in _LANES)}
   {"".join(_STEP.format(i=i) for i in _LANES)}
   (local.set $left (i32.sub (local.get $left) (i32.const 1)))
   (br $down)))"""
"""Takes every lane ``$left`` steps down, from its ``$node`` by the features at its ``$x``."""


def _of_tree(local: str, array: str, lane: int = 0) -> str:
    """Return what sets a local to an array's entry for the tree that a lane walks."""
    at = f"(i32.add (local.get ${array}) (i32.shl (local.get $tree) (i32.const 2)))"
    return f"(local.set ${local} (i32.load offset={4 * lane} {at}))"


def module_text() -> str:
    """Return the module in WebAssembly's text format; ``walk`` and ``walk_alone`` answer alike."""
    return f"""(module (memory (export "memory") 1)
 (func (export "walk") {_LOCALS} {_ARGUMENTS} {_many_rows()})
 (func (export "walk_alone") {_LOCALS} {_ARGUMENTS} {_many_trees()}))"""


def _many_rows() -> str:
    """Tree by tree, a dozen rows at a time; rows are padded to a multiple of that."""
    start = "".join(
        f"(local.set $node{i} (local.get $root))"
        f"(local.set $x{i} (i32.add (local.get $at) (i32.mul (local.get $stride) (i32.const {i}))))"
        for i in _LANES
    )
    add = "".join(
        f"(f32.store offset={4 * i} (local.get $sum) (f32.add"
        f" (f32.load offset={4 * i} (local.get $sum)) (f32.load (local.get $node{i}))))"
        for i in _LANES
    )
    return f"""
  (block $trees_done (loop $next_tree
   (br_if $trees_done (i32.ge_u (local.get $tree) (local.get $trees)))
   {_of_tree("root", "roots")} {_of_tree("depth", "depths")}
   {_of_tree("ahead", "roots", 1)} {_of_tree("ahead_end", "roots", 2)}
   (block $asked (loop $ask
     (br_if $asked (i32.ge_u (local.get $ahead) (local.get $ahead_end)))
     (local.set $seen (i32.xor (local.get $seen) (i32.load (local.get $ahead))))
     (local.set $ahead (i32.add (local.get $ahead) (i32.const {LINE_BYTES})))
     (br $ask)))
   (local.set $row (i32.const 0))
   (local.set $at (local.get $rows))
   (local.set $sum (local.get $sums))
   (block $rows_done (loop $next_rows
    (br_if $rows_done (i32.ge_u (local.get $row) (local.get $count)))
    {start}
    (local.set $left (local.get $depth))
    {_DOWN}
    {add}
    (local.set $row (i32.add (local.get $row) (i32.const {LANES})))
    (local.set $at (i32.add (local.get $at)
      (i32.mul (local.get $stride) (i32.const {LANES}))))
    (local.set $sum (i32.add (local.get $sum) (i32.const {4 * LANES})))
    (br $next_rows)))
   (local.set $tree (i32.add (local.get $tree) (i32.const 1)))
   (br $next_tree)))"""


def _many_trees() -> str:
    """Row by row, a dozen trees at a time, all as many steps as the deepest of them needs."""
    start = "".join(_of_tree(f"node{i}", "roots", i) for i in _LANES)
    deepest = _of_tree("left", "depths") + "".join(
        _of_tree("depth", "depths", i) + "(local.set $left (select (local.get $depth)"
        " (local.get $left) (i32.gt_u (local.get $depth) (local.get $left))))"
        for i in _LANES[1:]
    )
    add = "".join(
        f"(local.set $total (f32.add (local.get $total) (f32.load (local.get $node{i}))))"
        for i in _LANES
    )
    return f"""
  (local.set $at (local.get $rows))
  (local.set $sum (local.get $sums))
  (block $rows_done (loop $next_row
   (br_if $rows_done (i32.ge_u (local.get $row) (local.get $count)))
   {"".join(f"(local.set $x{i} (local.get $at))" for i in _LANES)}
   (local.set $total (f32.const 0))
   (local.set $tree (i32.const 0))
   (block $trees_done (loop $next_trees
    (br_if $trees_done (i32.ge_u (local.get $tree) (local.get $trees)))
    {start}
    {deepest}
    {_DOWN}
    {add}
    (local.set $tree (i32.add (local.get $tree) (i32.const {LANES})))
    (br $next_trees)))
   (f32.store (local.get $sum) (local.get $total))
   (local.set $row (i32.add (local.get $row) (i32.const 1)))
   (local.set $at (i32.add (local.get $at) (local.get $stride)))
   (local.set $sum (i32.add (local.get $sum) (i32.const 4)))
   (br $next_row)))"""
