"""Statistics beside a digest: how large a difference is, which a digest cannot tell."""

import torch

from fpdiff.fingerprint.digest.host import look


def statistics(tensor: torch.Tensor) -> tuple[float, float, int] | None:
    """Return (l2, absmax, nonfinite): norm and largest magnitude of the finite elements.

    Args:
        tensor: any tensor; None is returned for one that is not plain, is empty or on no device.

    Returns:
        l2 and absmax as float64 over finite elements, and the number of elements that are NaN or
        infinite.
    """
    if look(tensor) is None or tensor.numel() == 0 or tensor.is_meta:
        return None
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        values = tensor.detach()
        wide = values.abs() if values.is_complex() else values
        wide = wide.to(torch.float64)
        finite = torch.isfinite(wide)
        wide = torch.where(finite, wide, torch.zeros((), dtype=torch.float64, device=wide.device))
        return (
            float(torch.linalg.vector_norm(wide)),
            float(wide.abs().max()),
            int(wide.numel() - finite.sum()),
        )
