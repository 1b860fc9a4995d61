"""What the compiled kernels are written with: heads as LLVM vectors, a softmax.

The inner loops are written as LLVM vectors, so that they are vectors on every CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F32, _I8, _I16, I32 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)
CACHE_LINE = 64  # bytes
#: Adding, multiplying in another order is allowed; NaN and infinity stay what they are.
FLAGS = ("reassoc", "contract", "nsz", "arcp")


@intrinsic
def float_of(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), generate


def fetch(builder: Any, address: Any) -> None:
    """Tell the second level of the cache to get what is at an address, to be read. An address nobody has is no harm."""
    kind = ir.FunctionType(ir.VoidType(), (_I8.as_pointer(), I32, I32, I32))
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, (builder.inttoptr(address, _I8.as_pointer()), *(ir.Constant(I32, n) for n in (0, 2, 1))))


@intrinsic
def fetch_line(typing_context: Any, address: Any) -> Any:
    """`fetch` for numba's code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        fetch(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def fetch_all(builder: Any, address: Any, size: int) -> None:
    """`fetch` of each line of `size` bytes."""
    for line in range(0, size, CACHE_LINE):
        fetch(builder, builder.add(address, ir.Constant(address.type, line)))


def lanes_of(dim: int) -> int:
    """Floats of a vector for heads of `dim` values."""
    return next(lanes for lanes in (16, 8, 4, 2, 1) if dim % lanes == 0)


class _Vectors:
    """Code for loads, stores and sums of one head's `dim` values as vectors of float32."""

    def __init__(self, dim: int, bf16: bool) -> None:
        self.lanes = lanes_of(dim)
        self.count = dim // self.lanes
        self.bf16 = bf16
        self.itemsize = 2 if bf16 else 4
        self.floats = ir.VectorType(F32, self.lanes)
        self.ints = ir.VectorType(I32, self.lanes)
        self.shorts = ir.VectorType(_I16, self.lanes)

    def at(self, builder: Any, address: Any, offset: int, kind: Any) -> Any:
        where = builder.add(address, ir.Constant(address.type, offset)) if offset else address
        return builder.inttoptr(where, kind.as_pointer())

    def load(self, builder: Any, address: Any, i: int, bf16: bool | None = None) -> Any:
        """Vector `i` of a head as float32."""
        if not (self.bf16 if bf16 is None else bf16):
            return builder.load(self.at(builder, address, i * self.lanes * 4, self.floats), align=4)
        short = builder.load(self.at(builder, address, i * self.lanes * 2, self.shorts), align=2)
        wide = builder.zext(short, self.ints)
        shift = ir.Constant(self.ints, [16] * self.lanes)
        return builder.bitcast(builder.shl(wide, shift), self.floats)

    def store(self, builder: Any, address: Any, i: int, value: Any, bf16: bool) -> None:
        if not bf16:
            builder.store(value, self.at(builder, address, i * self.lanes * 4, self.floats), align=4)
            return
        bits = builder.bitcast(value, self.ints)
        one, high = (ir.Constant(self.ints, [x] * self.lanes) for x in (1, 16))
        odd = builder.and_(builder.lshr(bits, high), one)  # round half to even
        rounded = builder.add(bits, builder.add(odd, ir.Constant(self.ints, [0x7FFF] * self.lanes)))
        # A NaN must not round up into an infinity or wrap around to zero.
        is_nan = builder.fcmp_unordered("uno", value, value)
        kept = builder.select(is_nan, ir.Constant(self.ints, [0x7FC00000] * self.lanes), rounded)
        short = builder.trunc(builder.lshr(kept, high), self.shorts)
        builder.store(short, self.at(builder, address, i * self.lanes * 2, self.shorts), align=2)

    def splat(self, builder: Any, value: Any) -> Any:
        vector = ir.Constant(self.floats, ir.Undefined)
        for lane in range(self.lanes):
            vector = builder.insert_element(vector, value, ir.Constant(I32, lane))
        return vector

    def total(self, builder: Any, vector: Any) -> Any:
        """The sum of a vector's lanes, pairwise."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            order = [i + lanes if i < lanes else i for i in range(self.lanes)]
            mask = ir.Constant(ir.VectorType(I32, self.lanes), order)
            vector = builder.fadd(vector, builder.shuffle_vector(vector, vector, mask), flags=FLAGS)
        return builder.extract_element(vector, ir.Constant(I32, 0))

    def totals(self, builder: Any, vector_of: Callable[[int], Any]) -> Any:
        """The sums of the lanes of as many vectors as there are lanes, as one vector: halves of two vectors are folded
        onto each other until each lane has one vector's sum (a shuffle and an addition a vector, where `total` takes
        four)."""

        def fold(first: int, size: int) -> Any:
            if size == 1:
                return vector_of(first)
            step = size // 2
            low, high = fold(first, step), fold(first + step, step)
            own = [lane if not lane & step else self.lanes + lane for lane in range(self.lanes)]
            others = [lane ^ step if not lane & step else self.lanes + (lane ^ step) for lane in range(self.lanes)]
            masks = [ir.Constant(ir.VectorType(I32, self.lanes), order) for order in (own, others)]
            parts = [builder.shuffle_vector(low, high, mask) for mask in masks]
            return builder.fadd(*parts, flags=FLAGS)

        return fold(0, self.lanes)


def make_intrinsics(dim: int, bf16: bool) -> tuple[Any, Any, Any, Any, Any]:
    vectors = _Vectors(dim, bf16)

    @intrinsic
    def scores(typing_context: Any, out: Any, q: Any, keys: Any, count: Any, later: Any) -> Any:
        """out[t] = q . keys[t] for `count` tokens of one block; q in float32. The cache fetches the block at `later`
        meanwhile, so much of it as there are tokens: processors do not foresee where a paged cache goes on."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            out_at, q_at, keys_at, number, coming = args
            query = [vectors.load(builder, q_at, i, bf16=False) for i in range(vectors.count)]
            token_bytes, lanes = dim * vectors.itemsize, ir.Constant(number.type, vectors.lanes)

            def products(place: Any) -> Any:
                """One token's products, a vector whose lanes are still to be added up."""
                row = builder.add(keys_at, place)
                fetch_all(builder, builder.add(coming, place), token_bytes)
                sums = [builder.fmul(query[i], vectors.load(builder, row, i), flags=FLAGS)
                        for i in range(vectors.count)]  # fmt: skip
                while len(sums) > 1:
                    pairs = [builder.fadd(a, b, flags=FLAGS) for a, b in zip(sums[::2], sums[1::2], strict=False)]
                    sums = pairs + ([sums[-1]] if len(sums) % 2 else [])
                return sums[0]

            def place_of(token: Any, step: int) -> Any:
                return builder.mul(token, ir.Constant(number.type, step))

            groups = builder.sdiv(number, lanes)
            with cgutils.for_range(builder, groups, intp=number.type) as loop:
                first = builder.mul(loop.index, lanes)
                start = place_of(first, token_bytes)
                totals = vectors.totals(
                    builder, lambda t: products(builder.add(start, ir.Constant(number.type, t * token_bytes)))
                )
                address = vectors.at(builder, builder.add(out_at, place_of(first, 4)), 0, vectors.floats)
                builder.store(totals, address, align=4)
            done = builder.mul(groups, lanes)
            with cgutils.for_range(builder, builder.sub(number, done), intp=number.type) as loop:
                token = builder.add(done, loop.index)
                address = builder.inttoptr(builder.add(out_at, place_of(token, 4)), F32.as_pointer())
                builder.store(vectors.total(builder, products(place_of(token, token_bytes))), address, align=4)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 5), generate

    @intrinsic
    def accumulate(typing_context: Any, acc: Any, weights: Any, values: Any, count: Any, later: Any) -> Any:
        """acc += sum of weights[t] * values[t] over `count` tokens of one block; acc in float32. `later`: as `scores`
        has it."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            acc_at, weights_at, values_at, number, coming = args
            token_bytes = dim * vectors.itemsize
            cells = [cgutils.alloca_once_value(builder, vectors.load(builder, acc_at, i, bf16=False))
                     for i in range(vectors.count)]  # fmt: skip
            with cgutils.for_range(builder, number, intp=number.type) as loop:
                step = builder.mul(loop.index, ir.Constant(number.type, token_bytes))
                row = builder.add(values_at, step)
                fetch_all(builder, builder.add(coming, step), token_bytes)
                place = builder.add(weights_at, builder.mul(loop.index, ir.Constant(number.type, 4)))
                weight = vectors.splat(builder, builder.load(builder.inttoptr(place, F32.as_pointer()), align=4))
                for i, cell in enumerate(cells):
                    product = builder.fmul(weight, vectors.load(builder, row, i), flags=FLAGS)
                    builder.store(builder.fadd(builder.load(cell), product, flags=FLAGS), cell)
            for i, cell in enumerate(cells):
                vectors.store(builder, acc_at, i, builder.load(cell), bf16=False)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 5), generate

    @intrinsic
    def widen(typing_context: Any, out: Any, head: Any, factor: Any) -> Any:
        """out = head * factor, float32 out of the cache's dtype."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            factors = vectors.splat(builder, args[2])
            for i in range(vectors.count):
                value = builder.fmul(vectors.load(builder, args[1], i), factors, flags=FLAGS)
                vectors.store(builder, args[0], i, value, bf16=False)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32), generate

    @intrinsic
    def narrow(typing_context: Any, out: Any, acc: Any, factor: Any) -> Any:
        """out = acc * factor, the cache's dtype out of float32."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            factors = vectors.splat(builder, args[2])
            for i in range(vectors.count):
                value = builder.fmul(vectors.load(builder, args[1], i, bf16=False), factors, flags=FLAGS)
                vectors.store(builder, args[0], i, value, bf16=vectors.bf16)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32), generate

    @intrinsic
    def copy(typing_context: Any, out: Any, head: Any) -> Any:
        """One head's values, bit by bit."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = vectors.shorts if vectors.bf16 else vectors.ints
            for i in range(vectors.count):
                offset = i * vectors.lanes * vectors.itemsize
                value = builder.load(vectors.at(builder, args[1], offset, kind), align=vectors.itemsize)
                builder.store(value, vectors.at(builder, args[0], offset, kind), align=vectors.itemsize)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return scores, accumulate, widen, narrow, copy


@njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy", inline="always")
def exponential(x: Any) -> Any:
    """exp of a float32 in [-87, 87]: 2**n times a polynomial (Cephes' expf), good to 2 units in the last place."""
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1.0)) * float_of(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))


@njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy")
def softmax(scores: Any, length: int) -> float:
    """exp(scores - their maximum) in place; the sum."""
    top = scores[0]
    for t in range(1, length):
        top = max(top, scores[t])
    total = np.float32(0.0)
    for t in range(length):
        value = exponential(max(scores[t] - top, np.float32(-87.0)))
        scores[t] = value
        total += value
    return total
