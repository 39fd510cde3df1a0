"""Compile the kernels of mix128 for a device that need not be there, and print their names."""

import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from fpdiff.fingerprint.digest.mix128 import kernels

ONE = {"address": "i64", "num_bytes": "i32", "stretch": "i32", "slots": "*i64"}
MANY = {"parts": "*i64", "slots": "*i64"}


def main() -> None:
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    jobs = [(kernels.sum_one, ONE, word) for word in (1, 2, 4, 8)]
    jobs += [(kernels.sum_many, MANY, 8)]
    jobs += [
        (
            kernels.finish_one,
            {"slots": "*i64", "num_slots": "i32", "num_bytes": "i64", "out": "*i64"},
            0,
        ),
        (kernels.finish_many, {"wholes": "*i64", "slots": "*i64", "out": "*i64"}, 0),
    ]
    for kernel, types, word in jobs:
        constants = {"BLOCK": 1024, **({"WORD": word} if word else {})}
        signature = {**types, **dict.fromkeys(constants, "constexpr")}
        made = compile(ASTSource(kernel, signature, constants), target=target)
        assert ".atom" not in made.asm["ptx"] and ".red" not in made.asm["ptx"]
        print(kernel.__name__, word, len(made.asm["cubin"]) > 0)


main()
