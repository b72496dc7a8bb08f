"""The WebAssembly that walks trees: every tree, a dozen rows side by side.

A node is 8 bytes: a float32 threshold, then 32 bits that hold the left child's address (upper 22)
and the byte offset of the feature within a row (lower 10). A step loads both, compares, and adds
8 for the right child; it has no branch. Leaves point at themselves, so that every row takes as
many steps as its tree is deep. A dozen rows hide each other's load latency; and while they walk
one tree, every line of the next is asked for, since where a walk goes next no cache can foresee.
"""

from __future__ import annotations

ROWS_TOGETHER = 12

LINE_BYTES = 64
"""What a cache fetches at once."""

ARGUMENTS = ("rows", "count", "stride", "roots", "depths", "trees", "sums")
"""Addresses and sizes, 32 bits each, that the walk reads from the start of memory: handing them
over in the call would cost more than walking a few rows."""

_HEAD = """
(module
 (memory (export "memory") 1)
 (func (export "walk")
  (local $rows i32) (local $count i32) (local $stride i32)
  (local $roots i32) (local $depths i32) (local $trees i32) (local $sums i32)
  (local $tree i32) (local $row i32) (local $at i32) (local $sum i32)
  (local $root i32) (local $depth i32) (local $left i32)
  (local $ahead i32) (local $ahead_end i32) (local $seen i32)
"""

_STEP = """
  (local.set $node{i} (i32.add
   (i32.shr_u (local.get $packed{i}) (i32.const 10))
   (i32.shl (i32.eqz (f32.lt
     (f32.load (i32.add (local.get $x{i}) (i32.and (local.get $packed{i}) (i32.const 0x3fc))))
     (f32.load (local.get $node{i})))) (i32.const 3))))"""


def module_text() -> str:
    """Return the module in WebAssembly's text format."""
    lanes = range(ROWS_TOGETHER)
    local = "".join(f"(local $node{i} i32) (local $packed{i} i32) (local $x{i} i32)" for i in lanes)
    start = "".join(
        f"(local.set $node{i} (local.get $root))"
        f"(local.set $x{i} (i32.add (local.get $at) (i32.mul (local.get $stride) (i32.const {i}))))"
        for i in lanes
    )
    load = "".join(
        f"(local.set $packed{i} (i32.load offset=4 (local.get $node{i})))" for i in lanes
    )
    step = load + "".join(_STEP.format(i=i) for i in lanes)
    add = "".join(
        f"(f32.store offset={4 * i} (local.get $sum) (f32.add"
        f" (f32.load offset={4 * i} (local.get $sum)) (f32.load (local.get $node{i}))))"
        for i in lanes
    )
    arguments = "".join(
        f"(local.set ${name} (i32.load offset={4 * i} (i32.const 0)))"
        for i, name in enumerate(ARGUMENTS)
    )
    return f"""{_HEAD} {local}
  {arguments}
  (block $trees_done (loop $next_tree
   (br_if $trees_done (i32.ge_u (local.get $tree) (local.get $trees)))
   (local.set $root (i32.load
     (i32.add (local.get $roots) (i32.shl (local.get $tree) (i32.const 2)))))
   (local.set $depth (i32.load
     (i32.add (local.get $depths) (i32.shl (local.get $tree) (i32.const 2)))))
   (local.set $ahead (i32.load offset=4
     (i32.add (local.get $roots) (i32.shl (local.get $tree) (i32.const 2)))))
   (local.set $ahead_end (i32.load offset=8
     (i32.add (local.get $roots) (i32.shl (local.get $tree) (i32.const 2)))))
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
    (block $at_leaf (loop $down
     (br_if $at_leaf (i32.eqz (local.get $left)))
     {step}
     (local.set $left (i32.sub (local.get $left) (i32.const 1)))
     (br $down)))
    {add}
    (local.set $row (i32.add (local.get $row) (i32.const {ROWS_TOGETHER})))
    (local.set $at (i32.add (local.get $at)
      (i32.mul (local.get $stride) (i32.const {ROWS_TOGETHER}))))
    (local.set $sum (i32.add (local.get $sum) (i32.const {4 * ROWS_TOGETHER})))
    (br $next_rows)))
   (local.set $tree (i32.add (local.get $tree) (i32.const 1)))
   (br $next_tree)))))
"""
