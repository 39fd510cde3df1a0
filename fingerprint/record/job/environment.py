"""What decides, beside the program and its data, which bits a run computes.

Keys are flat and sorted by name so that two environments compare key by key. Those below
`decides.` can change a kernel's result on their own; the others (host, paths) cannot.
"""

import importlib.metadata
import os
import platform
import socket
import sys
from collections.abc import Iterator
from typing import Any

import torch

from fpdiff.fingerprint.record.job import switches

_VARIABLE_PREFIXES = (
    "ATEN_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "HIP_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32",
    "NVTE_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHONHASHSEED",
    "PYTORCH_",
    "ROCBLAS_",
    "TF32_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "XLA_",
)
_NOT_DECIDING = (
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_HOME",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",  # torchrun sets it; it is about failures.
    "TORCH_LOGS",
    "TORCH_SHOW_CPP_STACKTRACES",
    "TRITON_CACHE_DIR",
)
_LIBRARIES = (
    "accelerate",
    "apex",
    "bitsandbytes",
    "deepspeed",
    "flash-attn",
    "lightning",
    "megatron-core",
    "numpy",
    "peft",
    "pytorch-lightning",
    "torchao",
    "torchvision",
    "transformer-engine",
    "transformers",
    "triton",
    "xformers",
)


def describe() -> dict[str, Any]:
    """Return this process's environment as flat JSON-ready data."""
    found = {f"decides.{key}": value for key, value in _deciding()} | switches.describe()
    described: dict[str, Any] = {key: found[key] for key in sorted(found)}
    described.update(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        argv=list(map(str, getattr(sys, "argv", ()))),
        executable=sys.executable,
        local_rank=os.environ.get("LOCAL_RANK"),
        node_rank=os.environ.get("GROUP_RANK"),
        world_size=_world_size(),
        process_groups=_process_groups(),
        coordinates=_coordinates(),
    )
    return described


def _deciding() -> Iterator[tuple[str, Any]]:
    yield "torch", torch.__version__
    yield "python", platform.python_version()
    yield "machine", platform.machine()
    yield "cpu", _cpu_model()
    yield "cpu_capability", torch.backends.cpu.get_cpu_capability()
    yield "interop_threads", torch.get_num_interop_threads()
    yield "flush_denormal", sys.float_info.min / 2 == 0
    yield "devices", _devices()
    yield from _cuda_flags()
    for name in _LIBRARIES:
        if name.replace("-", "_") in sys.modules or name == "numpy":
            version = _version(name)
            if version is not None:
                yield f"version.{name}", version
    for name, value in os.environ.items():
        if name.startswith(_VARIABLE_PREFIXES) and name not in _NOT_DECIDING:
            yield f"env.{name}", value


def _cuda_flags() -> Iterator[tuple[str, Any]]:
    if torch.version.cuda is None and torch.version.hip is None:
        return
    cudnn = torch.backends.cudnn
    yield "cuda", torch.version.cuda or torch.version.hip
    yield "cudnn", cudnn.version()
    yield "cudnn_deterministic", cudnn.deterministic
    yield "cudnn_benchmark", cudnn.benchmark
    yield "cudnn_allow_tf32", _old_flag(cudnn, "allow_tf32")
    matmul = torch.backends.cuda.matmul
    yield "matmul_allow_tf32", _old_flag(matmul, "allow_tf32")
    yield "matmul_reduced_precision", matmul.allow_bf16_reduced_precision_reduction


def _old_flag(backend: Any, name: str) -> Any:
    """Return a flag, None where torch refuses: the program has set it by its newer name."""
    try:
        return getattr(backend, name)
    except RuntimeError:
        return None


def _devices() -> list[str]:
    if not torch.cuda.is_initialized():
        return ["cpu"]
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:  # Not Linux: the platform's word has to do.
        return platform.processor()
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _world_size() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def _process_groups() -> list[dict[str, Any]]:
    """Return this rank's groups; names are left out, since they differ between processes."""
    if _world_size() == 1:
        return []
    world = torch.distributed.distributed_c10d._world
    groups = []
    for group, ranks in world.pg_group_ranks.items():
        if torch.distributed.get_rank(group) < 0:
            continue  # It stands for groups that this rank has helped others to make.
        backend = torch.distributed.get_backend(group)
        groups.append({"ranks": sorted(ranks), "backend": backend})
    return groups


def _coordinates() -> dict[str, int]:
    """Return the rank's place in Megatron's parallel layout, where that is in use."""
    megatron: Any = sys.modules.get("megatron.core.parallel_state")
    if megatron is None or not megatron.model_parallel_is_initialized():
        return {}
    return {
        "pp": megatron.get_pipeline_model_parallel_rank(),
        "tp": megatron.get_tensor_model_parallel_rank(),
        "cp": megatron.get_context_parallel_rank(),
        "dp": megatron.get_data_parallel_rank(),
    }
