"""How well mix128 tells tensors apart, beside torch.hash_tensor.

    python bench/digest_quality.py [--trials 1000000]

Changes tensors in ways that training runs differ in (last bits, exchanged elements, signs, offsets)
and counts the changes that leave the digest as it was. Then prints how far the digests are from
coins: how many output bits an input bit flips, how many of the bits are ones, and how often the
same change of one lane moves a sum by the same amount at two places, which is what could cancel.
Exits 1 if mix128 misses a change, in the whole or in one of its two words, or if amounts repeat
more often than by chance.
"""

import argparse
import sys
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from fpdiff.fingerprint.digest.mix128 import vectorised

ELEMENTS = 256
BATCH = 2000
"""Tensors that are changed at once."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
COUNTS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)

_BITS = {2: torch.int16, 4: torch.int32}
_FLIPS = (
    *(1 << bit for bit in (0, 1, 15, 16, 31, 32, 47, 48, 62, 63)),
    *(0x8000800080008000, 0x8000000080000000, 0x0001000100010001, 0x0000000100000001),
    *(0x80008000, 0x8000800000000000, 0x8000000000008000, 0x0000800080000000),
)
"""What single elements and whole lanes of two or four may differ in: signs and last bits."""

Change = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""Changes rows of elements, each in its own way."""


def ulps(count: int) -> Change:
    """Return the change of so many elements by a unit in the last place, up or down."""

    def change(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        bits = rows.view(_BITS[rows.itemsize])
        signs = torch.randint(0, 2, (len(rows), count), generator=generator) * 2 - 1
        return (bits + _placed(signs.to(bits.dtype), rows, generator)).view(rows.dtype)

    return change


def signs(count: int) -> Change:
    """Return the change of the signs of so many elements."""

    def change(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        ones = torch.ones(len(rows), count, dtype=torch.int32)
        return torch.where(_placed(ones, rows, generator) % 2 == 1, -rows, rows)

    return change


def _placed(values: torch.Tensor, rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return rows with values added at random places, and zeros elsewhere."""
    places = torch.randint(0, rows.shape[1], values.shape, generator=generator)
    return torch.zeros_like(rows, dtype=values.dtype).scatter_add_(1, places, values)


def swap(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Exchange two elements."""
    first, second = torch.randint(0, rows.shape[1], (2, len(rows), 1), generator=generator)
    changed = rows.scatter(1, first, rows.gather(1, second))
    return changed.scatter(1, second, rows.gather(1, first))


def permute(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put all elements in another order."""
    return rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(1))


def shift(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Move all elements by some places, those at the end to the beginning."""
    by = torch.randint(1, rows.shape[1], (len(rows), 1), generator=generator)
    return rows.gather(1, (torch.arange(rows.shape[1]) + by) % rows.shape[1])


def offset(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Add the same number to all elements."""
    return rows + torch.randn(len(rows), 1, generator=generator).to(rows.dtype)


def negate(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Change all signs."""
    return -rows


RANDOM, EQUAL = "random", "equal"
CHANGES: list[tuple[str, str, Change]] = [
    *((f"{count} by 1 ULP", RANDOM, ulps(count)) for count in COUNTS),
    ("2 by 1 ULP, of equal elements", EQUAL, ulps(2)),
    ("16 by 1 ULP, of equal elements", EQUAL, ulps(16)),
    ("sign of 1", RANDOM, signs(1)),
    ("signs of 2", RANDOM, signs(2)),
    ("signs of 2, of equal elements", EQUAL, signs(2)),
    ("signs of 64", RANDOM, signs(64)),
    ("all signs", RANDOM, negate),
    ("two swapped", RANDOM, swap),
    ("all permuted", RANDOM, permute),
    ("all shifted", RANDOM, shift),
    ("a number added to all", RANDOM, offset),
]


def bases(dtype: torch.dtype, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return rows of normally distributed elements, and rows of one such number each."""
    return {
        RANDOM: torch.randn(BATCH, ELEMENTS, generator=generator).to(dtype),
        EQUAL: torch.randn(BATCH, 1, generator=generator).to(dtype).repeat(1, ELEMENTS),
    }


def digests(rows: torch.Tensor) -> torch.Tensor:
    """Return the digests of rows, as two words for each."""
    lanes = rows.view(torch.int64)
    sums = vectorised.lane_sums(lanes, torch.arange(lanes.shape[1]))
    return vectorised.finish(sums, rows.shape[1] * rows.itemsize)


def count_misses(
    dtype: torch.dtype, trials: int, generator: torch.Generator
) -> dict[str, tuple[int, int, int]]:
    """Return for each change: trials, misses in a word of mix128, misses of hash_tensor."""
    counts = {name: [0, 0, 0] for name, _, _ in CHANGES}
    while any(count[0] < trials for count in counts.values()):
        rows = bases(dtype, generator)
        before = {kind: (digests(row), torch.hash_tensor(row, -1)) for kind, row in rows.items()}
        for name, kind, change in CHANGES:
            after = change(rows[kind], generator)
            is_other = (after.view(torch.int64) != rows[kind].view(torch.int64)).any(1)
            ours = (digests(after) == before[kind][0]).any(0)
            theirs = torch.hash_tensor(after, -1) == before[kind][1]
            found = (is_other, ours & is_other, theirs & is_other)
            counts[name] = [n + int(f.sum()) for n, f in zip(counts[name], found, strict=True)]
    return {name: (tried, ours, theirs) for name, (tried, ours, theirs) in counts.items()}


def count_equal_zeros(lengths: int) -> tuple[int, int]:
    """Return how many tensors of 0, 1, 2 ... zero bytes share a word of mix128, or hash_tensor."""
    positions = torch.arange((lengths + 7) // 8)
    sums = vectorised.mixed(torch.zeros_like(positions), positions)
    num_bytes = torch.arange(lengths)
    shared = 0
    for word, one in enumerate(sums):
        totals = torch.cat([one.new_zeros(1), one.cumsum(0)])[(num_bytes + 7) // 8]
        finished = vectorised.mixed(totals, num_bytes)[word]
        shared += lengths - len(finished.unique())
    sample = [int(torch.hash_tensor(torch.zeros(n, dtype=torch.uint8))) for n in range(1, 1000)]
    return shared, lengths - 1 if set(sample) == {0} else 0


def repeated_amounts(places: int) -> tuple[float, str]:
    """Return the most that a window of 32 bits of what a change adds repeats, over chance.

    Two changes cancel in a sum if one adds what the other takes away, so the amounts that one kind
    of change adds at different places must look drawn at random.
    """
    generator = torch.Generator().manual_seed(1)
    positions = torch.arange(places)
    any_values = torch.randint(-(1 << 63), (1 << 63) - 1, (places,), generator=generator)
    expected = places * (places - 1) / 2 / 2**32
    worst = (0.0, "")
    for kind, values in (
        ("ones", torch.full((places,), 0x3F803F803F803F80)),
        ("zeros", torch.zeros(places, dtype=torch.int64)),
        ("any values", any_values),
    ):
        before = vectorised.mixed(values, positions)
        for flip in _FLIPS:
            flipped = values ^ _signed(flip, 64)
            after = vectorised.mixed(flipped, positions)
            for word in (0, 1):
                amounts = after[word] - before[word]
                for low in (0, 16, 32):
                    window = (amounts >> low) & 0xFFFF_FFFF
                    excess = (places - len(window.unique()) - expected) / expected**0.5
                    worst = max(worst, (excess, f"{kind}, bits {flip:#x}, from bit {low}"))
    return worst


def output_bits(words: torch.Tensor) -> torch.Tensor:
    """Return the bits of digests, a last dimension of 64 for each word."""
    return (words.unsqueeze(-1) >> torch.arange(64)) & 1


def _signed(word: int, bits: int) -> int:
    return word - (word >> bits - 1 << bits)


def avalanche(hashed: Callable[[torch.Tensor], torch.Tensor], samples: int) -> tuple[float, float]:
    """Return the share of output bits that an input bit flips, and the furthest cell from a half.

    A cell is an input bit of one float32 and an output bit.
    """
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(samples, 16, generator=generator)
    before = hashed(rows)
    shares = []
    for bit in range(32):
        flipped = rows.clone()
        flipped.view(torch.int32)[:, 5].bitwise_xor_(_signed(1 << bit, 32))
        changed = output_bits(hashed(flipped) ^ before).double()
        shares.append(changed.mean(-2))  # Over the samples.
    cells = torch.stack(shares)
    return float(cells.mean()), float((cells - 0.5).abs().max())


def balance(hashed: Callable[[torch.Tensor], torch.Tensor], samples: int) -> float:
    """Return how far from a half the share of ones is, in the output bit that is furthest."""
    generator = torch.Generator().manual_seed(3)
    ones = output_bits(hashed(torch.randn(samples, 16, generator=generator))).double().mean(-2)
    return float((ones - 0.5).abs().max())


def theirs(rows: torch.Tensor) -> torch.Tensor:
    """Return torch.hash_tensor of rows as one word for each."""
    return torch.hash_tensor(rows, -1).view(torch.int64)


def print_misses(trials: int, console: Console) -> int:
    """Count and print the misses; return those of mix128."""
    generator = torch.Generator().manual_seed(0)
    table = Table("what changes", "trials", *(f"mix128 {_name(d)}" for d in DTYPES))
    for dtype in DTYPES:
        table.add_column(f"hash_tensor {_name(dtype)}")
    counts = [count_misses(dtype, trials, generator) for dtype in DTYPES]
    for name, _, _ in CHANGES:
        rows = [count[name] for count in counts]
        cells = [f"{row[1]:,}" for row in rows]
        cells += [f"{row[2]:,}" for row in rows]
        table.add_row(name, f"{min(row[0] for row in rows):,}", *cells)
    shared, blind = count_equal_zeros(trials)
    table.add_row("length, of zeros", f"{trials:,}", f"{shared:,}", "", "", f"{blind:,}", "", "")
    console.print(table)
    return shared + sum(row[1] for count in counts for row in count.values())


def print_statistics(samples: int, console: Console) -> None:
    """Print avalanche and bit balance; by chance the furthest cell is 4.5 / 2 sqrt(samples)."""
    table = Table("digest", "bits flipped", "furthest cell", "furthest bit from balance")
    for name, hashed in (("mix128", digests), ("torch.hash_tensor", theirs)):
        share, furthest = avalanche(hashed, samples)
        table.add_row(name, f"{share:.4f}", f"{furthest:.4f}", f"{balance(hashed, samples):.4f}")
    by_chance = 0.5 / samples**0.5
    table.add_row("coins", "0.5000", f"{4.5 * by_chance:.4f}", f"{2.9 * by_chance:.4f}")
    console.print(table)


def _name(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description="Try how well mix128 tells tensors apart.")
    parser.add_argument("--trials", type=int, default=1_000_000, help="of each change and dtype")
    trials = parser.parse_args().trials
    torch.set_num_threads(1)  # The operators are short: threads would mostly wait for each other.
    console = Console(width=None if sys.stdout.isatty() else 140)
    misses = print_misses(trials, console)
    print_statistics(1 << (15 if trials >= 100_000 else 12), console)
    excess, where = repeated_amounts(1 << (20 if trials >= 100_000 else 17))
    print(f"repeated amounts: at most {excess:.1f} standard deviations over chance ({where})")
    print(f"mix128 missed {misses}")
    sys.exit(misses > 0 or excess > 8)


if __name__ == "__main__":
    main()
