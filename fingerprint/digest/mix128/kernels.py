"""The traced half of `launches`: what a program of a Triton launch does.

A program takes a stretch of a tensor's lanes and writes their sums to a slot of its own; then a
second launch adds the slots up, in order, and finishes. So nothing is atomic, and nothing hangs on
the grid. Memory is read by address, in words of WORD bytes that the addresses are multiples of.
"""

import triton
import triton.language as tl

from fpdiff.fingerprint.digest.mix128.reference import GAMMAS, MULTIPLIERS, ROTATIONS, SHIFTS

_G0, _G1 = (tl.constexpr(word) for word in GAMMAS)
_M00, _M01, _M10, _M11 = (tl.constexpr(word) for pair in MULTIPLIERS for word in pair)
_R0, _R1 = (tl.constexpr(bits) for bits in ROTATIONS)
_S0, _S1 = (tl.constexpr(bits) for bits in SHIFTS)


# An argument of 1 would otherwise be a constant, which has no type to be cast from, and addresses
# of another alignment another kernel.
@triton.jit(do_not_specialize=["address", "num_bytes", "stretch"])
def sum_one(address, num_bytes, stretch, slots, BLOCK: tl.constexpr, WORD: tl.constexpr):
    """Store the sums of a stretch of one tensor in this program's slot."""
    slot = tl.program_id(0).to(tl.int64)
    size = num_bytes.to(tl.int64)
    begin = slot * stretch
    end = tl.minimum(begin + stretch, (size + 7) // 8)
    _sum(address.to(tl.int64), size, begin, end, slots + 2 * slot, BLOCK, WORD)


@triton.jit
def sum_many(parts, slots, BLOCK: tl.constexpr, WORD: tl.constexpr):
    """Store the sums of what a row of `parts` says: address, bytes, first lane, end."""
    slot = tl.program_id(0).to(tl.int64)
    part = parts + 4 * slot
    address, num_bytes = tl.load(part), tl.load(part + 1)
    begin, end = tl.load(part + 2), tl.load(part + 3)
    _sum(address, num_bytes, begin, end, slots + 2 * slot, BLOCK, WORD)


@triton.jit
def _sum(address, num_bytes, begin, end, slot, BLOCK: tl.constexpr, WORD: tl.constexpr):
    """Store the sums of lanes `begin` to `end` of the memory at an address."""
    num_whole = num_bytes // 8
    x_sum = tl.full([BLOCK], 0, tl.uint64)
    y_sum = tl.full([BLOCK], 0, tl.uint64)
    for first in range(begin, tl.minimum(end, num_whole), BLOCK):
        number = first + tl.arange(0, BLOCK)
        inside = number < tl.minimum(end, num_whole)
        x, y = _mixed(_load(address, number, inside, WORD), number.to(tl.uint64))
        x_sum += tl.where(inside, x, 0)
        y_sum += tl.where(inside, y, 0)
    # The last lane, if the bytes do not fill it, is the last program's.
    byte = num_whole * 8 + tl.arange(0, 8)
    is_mine = end > num_whole
    pointers = address.to(tl.pointer_type(tl.uint8)) + byte
    bytes_of_last = tl.load(pointers, mask=byte < tl.where(is_mine, num_bytes, 0), other=0)
    last = tl.sum(bytes_of_last.to(tl.uint64) << (8 * tl.arange(0, 8)).to(tl.uint64))
    x, y = _mixed(last, num_whole.to(tl.uint64))
    x_total = tl.sum(x_sum) + tl.where(is_mine, x, 0)
    y_total = tl.sum(y_sum) + tl.where(is_mine, y, 0)
    tl.store(slot, x_total.to(tl.int64))
    tl.store(slot + 1, y_total.to(tl.int64))


@triton.jit
def _load(address, number, inside, WORD: tl.constexpr):
    if WORD == 8:
        pointers = address.to(tl.pointer_type(tl.uint64)) + number
        return tl.load(pointers, mask=inside, other=0)
    lane = tl.zeros_like(number).to(tl.uint64)
    for part in tl.static_range(8 // WORD):
        index = number * (8 // WORD) + part
        if WORD == 4:
            word = tl.load(address.to(tl.pointer_type(tl.uint32)) + index, mask=inside, other=0)
        elif WORD == 2:
            word = tl.load(address.to(tl.pointer_type(tl.uint16)) + index, mask=inside, other=0)
        else:
            word = tl.load(address.to(tl.pointer_type(tl.uint8)) + index, mask=inside, other=0)
        lane |= word.to(tl.uint64) << (8 * WORD * part)
    return lane


@triton.jit
def _mixed(value, position):
    spread = value
    spread ^= (value >> _R0) | (value << (64 - _R0))
    spread ^= (value >> _R1) | (value << (64 - _R1))
    keys = position + 1
    x = (spread ^ (keys * _G0)) * _M00
    y = (spread + keys * _G1) * _M10
    x = (x ^ (x >> _S0) ^ (x >> _S1)) * _M01
    y = (y ^ (y >> _S0) ^ (y >> _S1)) * _M11
    return x ^ (x >> _S1), y ^ (y >> _S1)


@triton.jit(do_not_specialize=["num_slots", "num_bytes"])
def finish_one(slots, num_slots, num_bytes, out, BLOCK: tl.constexpr):
    """Store the digest of one tensor."""
    _finish(slots, num_slots, num_bytes, out, BLOCK)


@triton.jit
def finish_many(wholes, slots, out, BLOCK: tl.constexpr):
    """Store the digest of what a row of `wholes` says: first slot, end, bytes."""
    number = tl.program_id(0).to(tl.int64)
    whole = wholes + 3 * number
    first_slot, end_slot, num_bytes = tl.load(whole), tl.load(whole + 1), tl.load(whole + 2)
    _finish(slots + 2 * first_slot, end_slot - first_slot, num_bytes, out + 2 * number, BLOCK)


@triton.jit
def _finish(slots, num_slots, num_bytes, out, BLOCK: tl.constexpr):
    """Add the slots of one tensor up, finish, and store the digest."""
    x_sum = tl.full([BLOCK], 0, tl.uint64)
    y_sum = tl.full([BLOCK], 0, tl.uint64)
    for first in range(0, num_slots, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        x_sum += tl.load(slots + 2 * slot, mask=slot < num_slots, other=0).to(tl.uint64)
        y_sum += tl.load(slots + 2 * slot + 1, mask=slot < num_slots, other=0).to(tl.uint64)
    word = tl.arange(0, 2)
    totals = tl.where(word == 0, tl.sum(x_sum), tl.sum(y_sum))
    x, y = _mixed(totals, num_bytes.to(tl.uint64))
    tl.store(out + word, tl.where(word == 0, x, y).to(tl.int64))
