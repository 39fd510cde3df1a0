"""States of random generators, and which module drew from torch's."""

import random
import sys
from array import array
from collections.abc import Iterator

import torch

from fpdiff.fingerprint.digest.host import digest_bytes, memory


def states() -> Iterator[tuple[str, bytes]]:
    """Yield (name, digest of its state) for each default generator; none is moved.

    Names: `python`, `numpy` where it is loaded, `torch.cpu`, `torch.cuda:0` where CUDA is in use.
    Generator objects that a script makes for itself are not known to anybody and not included.
    """
    version, words, gauss = random.getstate()
    yield "python", digest_bytes(array("Q", words).tobytes() + repr((version, gauss)).encode())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.get_state(legacy=True)
        rest = repr((name, int(position), int(has_gauss), float(gauss))).encode()
        yield "numpy", digest_bytes(keys.tobytes() + rest)
    yield "torch.cpu", _digest_state(torch.default_generator.get_state())
    for device, generator in _device_generators():
        yield f"torch.{device}", _device_state(generator)


def torch_state() -> bytes:
    """Return one digest of the states of torch's generators of this process's devices.

    It costs 2 us on the host: it is taken at both ends of each module call.
    """
    own = _digest_state(torch.default_generator.get_state())
    devices = b"".join(_device_state(generator) for _, generator in _device_generators())
    return digest_bytes(own + devices) if devices else own


def generator_of(
    explicit: torch.Generator | None, device: torch.device
) -> tuple[str, object, bytes]:
    """Return (name, key, digest of the state) of the generator that an op draws from.

    Args:
        explicit: the op's own `generator` argument.
        device: the op's device, whose default generator is drawn from otherwise.
    """
    if explicit is not None:
        state = _state_digest(explicit)
        # Each op is given a wrapper of its own around what the program holds.
        return "generator", explicit._cdata, state  # type: ignore[attr-defined]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        own = torch.cuda.default_generators[index]
        return f"torch.cuda:{index}", f"cuda:{index}", _device_state(own)
    return "torch.cpu", "cpu", _digest_state(torch.default_generator.get_state())


def _state_digest(generator: torch.Generator) -> bytes:
    if generator.device.type == "cuda":
        return _device_state(generator)
    return _digest_state(generator.get_state())


def _device_generators() -> Iterator[tuple[str, torch.Generator]]:
    if torch.cuda.is_initialized():
        for index, generator in enumerate(torch.cuda.default_generators):
            yield f"cuda:{index}", generator


def _device_state(generator: torch.Generator) -> bytes:
    # Seed and offset say it all (Philox) and need no copy from the device.
    return digest_bytes(repr((generator.initial_seed(), generator.get_offset())).encode())


def _digest_state(state: torch.Tensor) -> bytes:
    # A fresh, contiguous tensor of bytes: none of the general way's questions arise.
    return digest_bytes(memory(state, state.nbytes))
