"""Runs recorded with either digest: the same events, the same verdicts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import hide_the_past, info, mlp, read, recorded, train
from strategies import raw_bytes

import fpdiff
from fpdiff.fingerprint.digest.algorithms import ALGORITHMS
from fpdiff.fingerprint.digest.host import Undigestible, digest, look
from fpdiff.fingerprint.digest.mix128 import reference
from fpdiff.fingerprint.record.settings import DIGESTS, Settings
from fpdiff.store.errors import CompareError, RecordError
from fpdiff.store.schema import DIGEST_ALGORITHM


def test_the_names_are_the_same_everywhere() -> None:
    assert DIGESTS == tuple(ALGORITHMS) and DIGESTS[0] == DIGEST_ALGORITHM
    with pytest.raises(RecordError, match="'md5' is not known: give xxh3-128 or mix128"):
        Settings(out="", digest="md5")


def weight(net: torch.nn.Sequential) -> torch.Tensor:
    last = net[2].weight
    assert isinstance(last, torch.Tensor)
    return last


def run(path: Path, *, wrong: bool = False, **options: Any) -> torch.nn.Sequential:
    """Record a training whose second step begins with one bit flipped, if it is to be wrong."""
    hide_the_past()
    net = mlp()

    memory = weight(net).detach().numpy().view(np.int32)  # No operator writes there.

    def each(step: int) -> None:
        memory[1, 2] ^= int(wrong and step == 1)

    with recorded(path, **options):
        train(net, each=each)
    return net


@pytest.mark.parametrize("level", ["layer", "op"])
def test_either_digest_leads_to_the_same_verdict(tmp_path: Path, level: str) -> None:
    verdicts = {}
    for name in DIGESTS:
        for arm in ("a", "twin", "wrong"):
            run(tmp_path / name / arm, level=level, digest=name, wrong=arm == "wrong", rehash=True)
        paths = {arm: tmp_path / name / arm for arm in ("a", "twin", "wrong")}
        assert fpdiff.open_run(paths["a"]).info["digest"] == name
        assert "stopped" not in info(paths["a"])
        assert fpdiff.compare(paths["a"], paths["twin"]).verdict == "identical"
        assert fpdiff.certify(paths["a"]).verdict == "sound"
        verdicts[name] = fpdiff.compare(paths["a"], paths["wrong"])
    for verdict in verdicts.values():
        assert (verdict.verdict, verdict.first_step) == ("diverged", 1)
        assert verdict.origins[0].module == "2"
    xxh3, mix128 = (verdicts[name] for name in DIGESTS)
    where = [(o.step, o.module, o.op, o.slot, o.class_, o.seq) for o in xxh3.origins]
    assert [(o.step, o.module, o.op, o.slot, o.class_, o.seq) for o in mix128.origins] == where
    a, b = (read(tmp_path / name / "a") for name in DIGESTS)
    shown = ("step", "phase", "kind", "module", "slot", "occurrence", "inputs", "dtype")
    assert a.names(*shown) == b.names(*shown)


def test_a_tensor_is_digested_as_the_run_says_and_not_changed(tmp_path: Path) -> None:
    net = run(tmp_path / "run", digest="mix128")
    train(unrecorded := mlp())
    for ours, own in zip(net.parameters(), unrecorded.parameters(), strict=True):
        assert raw_bytes(ours) == raw_bytes(own)
    last = read(tmp_path / "run").pick(step=1, phase="optimizer", kind="parameter", module="2")
    assert last.one(slot="weight").digest == reference.digest(raw_bytes(weight(net)))


def test_runs_of_two_digests_are_not_compared(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b", digest="mix128")
    with pytest.raises(CompareError, match="xxh3-128 digests and .*b mix128: .* --digest"):
        fpdiff.compare(tmp_path / "a", tmp_path / "b")


def test_a_tensor_elsewhere_is_digested_there_to_the_same() -> None:
    algorithm = ALGORITHMS["mix128"]
    for tensor in (torch.rand(3, 5).t(), torch.rand(9).bfloat16()[1:], torch.empty(0, 2)):
        view = look(tensor)
        assert view is not None
        there = algorithm.of_plain(tensor, replace(view, is_on_host=False))
        assert there == algorithm.of_plain(tensor, view) == reference.digest(raw_bytes(tensor))
        assert digest(tensor.to_sparse(), algorithm.of_plain) != digest(tensor.to_sparse())
    meta = torch.empty(3, device="meta")
    view = look(meta)
    assert view is not None
    with pytest.raises(Undigestible, match="meta tensor"):
        algorithm.of_plain(meta, view)
