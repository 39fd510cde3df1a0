"""Models that two runs call in another order: *the* root is the first one that is called."""

from collections import defaultdict

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import Arm, Flags, Site

_State = dict[tuple[str, str], tuple[int, ...]]
"""What a root's parameters hold, by the path below it and the name."""


def root_in_b(aligned: Aligned, mismatched: Flags) -> str | None:
    """Return what run A's root is called in run B, if another model is the root there.

    Both roots start with the same parameters in both runs, under other names.
    """
    if not (mismatched & aligned.having(_is_parameter)).any():
        return None
    a, b = _states(aligned.a), _states(aligned.b)
    own, other = a.get(""), b.get("")
    if own is None or other is None or own == other or other not in a.values():
        return None
    return next((root for root, state in b.items() if state == own), None)


def _states(arm: Arm) -> dict[str, _State]:
    found: dict[str, _State] = defaultdict(dict)
    for index in np.flatnonzero(arm.sites.having(_is_parameter)[arm.site]).tolist():
        site = arm.site_of(index)
        root, _, path = site["module"].partition(".")
        if not root.startswith("~"):
            root, path = "", site["module"]
        found[root][path, site["slot"]] = arm.content_of(index)
    return found


def _is_parameter(site: Site) -> bool:
    return bool(site["kind"] == "parameter" and site["phase"] == "init")
