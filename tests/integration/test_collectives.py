"""Every collective on three gloo processes: who gave what, who got it, who began it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from processes import PROGRAMS, Jobs, Preloaded, compare_json

import fpdiff

WORLD = "0,1,2"
TENSOR, TENSORS, INPUT = ("tensors.0",), ("tensors.0", "tensors.1"), ("input",)
THREE = (0, 1, 2)


@dataclass(frozen=True)
class Case:
    """A collective and what is to be recorded of it.

    Attributes:
        name: in programs/collectives.py, and whose part is twisted: `all_reduce@1`.
        op: as the sites name it, `allreduce_`.
        receivers: ranks that get something else once that part is twisted.
        gives: ranks that give something; `gets` those that read what they got.
        sent: slots of what is given; `received` of what was got.
        members: the ranks that take part; of messages, those of each, in no order.
        answers: for each of `received`, what the sites name the op, if it is another one.
    """

    name: str
    op: str
    receivers: tuple[int, ...] = ()
    gives: tuple[int, ...] = THREE
    gets: tuple[int, ...] = THREE
    sent: tuple[str, ...] = TENSOR
    received: tuple[str, ...] = TENSOR
    members: tuple[str, ...] = (WORLD,)
    answers: tuple[str, ...] = ()


def parts(slot: str, num: int = 3) -> tuple[str, ...]:
    return tuple(f"{slot}.{index}" for index in range(num))


def message(name: str, members: str = "0>1", *, num: int = 1) -> Case:
    """Return the case of as many messages from one rank to another."""
    source, target = int(members[0]), int(members[2])
    slots = TENSOR * num
    return Case(
        f"{name}@{source}",
        op="send",
        answers=("recv_",) * num,
        receivers=(target,),
        gives=(source,),
        gets=(target,),
        sent=slots,
        received=slots,
        members=(members,),
    )


CASES = [
    message("send"),
    message("isend", "2>1", num=2),
    message("send_within_a_module"),
    message("send_between_steps"),
    message("stage"),
    message("pipeline", num=2),
    replace(message("tags_in_another_order", num=2), members=("0>1 tag 3", "0>1 tag 4")),
    replace(
        message("recv_from_anybody"), answers=("recv_any_source_",), members=("0>1", "0,1,2>1")
    ),
    replace(
        message("recv_from_anybody_between_steps"),
        answers=("recv_any_source_",),
        members=("0>1", "0,1,2>1"),
    ),
    Case(
        "answer_to_anybody@0",
        "send",
        (1,),
        gives=(0,),
        gets=(1,),
        sent=TENSOR * 2,
        received=TENSOR * 2,
        answers=("recv_", "recv_any_source_"),
        members=("0>1", "0,1,2>1"),
    ),
    message("sub_group_send", "2>1"),
    replace(
        message("functional_isend"),
        op="isend",
        answers=("irecv",),
        sent=("tensor",),
        received=("out.0",),
    ),
    Case("batch_isend_irecv@1", "send", (2,), answers=("recv_",), members=("0>1", "1>2", "2>0")),
    Case(
        "functional_batch@1",
        "batch_p2p_ops",
        (2,),
        received=("out.0.1",),
        members=("0>1", "1>2", "2>0"),
    ),
    Case("reduce@0", "reduce_", (1,), gets=(1,)),
    Case("reduce_read_by_all@1", "reduce_", (0, 2)),
    Case(
        "gather@0",
        "gather_",
        (1,),
        gets=(1,),
        sent=("input_tensors.0",),
        received=parts("output_tensors.0"),
    ),
    Case("broadcast@1", "broadcast_", (0, 2), gives=(1,)),
    Case(
        "all_gather@1",
        "allgather_",
        (0, 2),
        sent=("input_tensors.0",),
        received=parts("output_tensors.0"),
    ),
    Case(
        "all_gather_coalesced@1",
        "allgather_coalesced_",
        (0, 2),
        sent=parts("input_list", 2),
        received=tuple(slot for i in range(3) for slot in parts(f"output_lists.{i}", 2)),
    ),
    Case(
        "all_gather_into_tensor@1",
        "_allgather_base_",
        (0, 2),
        sent=("input_tensor",),
        received=("output_tensor",),
    ),
    Case(
        "reduce_scatter@1",
        "reduce_scatter_",
        (0, 2),
        sent=parts("input_tensors.0"),
        received=("output_tensors.0",),
    ),
    Case(
        "reduce_scatter_tensor@1",
        "_reduce_scatter_base_",
        (0, 2),
        sent=("input_tensor",),
        received=("output_tensor",),
    ),
    Case(
        "scatter@1",
        "scatter_",
        (0, 2),
        gives=(1,),
        sent=parts("input_tensors.0"),
        received=("output_tensors.0",),
    ),
    Case(
        "all_to_all@1",
        "alltoall_",
        (0, 2),
        sent=parts("input_tensors"),
        received=parts("output_tensors"),
    ),
    Case("all_to_all_single@1", "alltoall_base_", (0, 2), sent=INPUT, received=("output",)),
    Case("all_to_all_uneven@1", "alltoall_base_", (0, 2), sent=INPUT, received=("output",)),
    Case("all_reduce@1", "allreduce_", (0, 2)),
    Case("all_reduce_in_different_places@1", "allreduce_", (0, 2)),
    Case("all_reduce_between_steps@1", "allreduce_", (0, 2)),
    Case("all_reduce_waited_for_later@1", "allreduce_", (0, 2)),
    Case("all_reduce_coalesced@1", "allreduce_coalesced_", (0, 2), sent=TENSORS, received=TENSORS),
    Case("coalesced_all_reduces@1", "allreduce_coalesced_", (0, 2), sent=TENSORS, received=TENSORS),
    Case(
        "coalesced_all_gathers@1",
        "allgather_into_tensor_coalesced_",
        (0, 2),
        sent=parts("inputs", 2),
        received=parts("outputs", 2),
    ),
    Case(
        "coalesced_reduce_scatters@1",
        "reduce_scatter_tensor_coalesced_",
        (0, 2),
        sent=parts("inputs", 2),
        received=parts("outputs", 2),
    ),
    Case("sub_group@2", "broadcast_", (1,), gives=(2,), gets=(1, 2), members=("1,2",)),
    Case(
        "sub_group_gather@1",
        "gather_",
        (2,),
        gives=(1, 2),
        gets=(2,),
        sent=("input_tensors.0",),
        received=parts("output_tensors.0", 2),
        members=("1,2",),
    ),
    Case(
        "functional_sub_group@1",
        "all_reduce",
        (2,),
        gives=(1, 2),
        gets=(1, 2),
        sent=INPUT,
        received=("out.0",),
        members=("1,2",),
    ),
    Case("functional_all_reduce@1", "all_reduce", (0, 2), sent=INPUT, received=("out.0",)),
    Case(
        "functional_all_gather_tensor@1",
        "all_gather_into_tensor",
        (0, 2),
        sent=INPUT,
        received=("out.0",),
    ),
    Case(
        "functional_reduce_scatter_tensor@1",
        "reduce_scatter_tensor",
        (0, 2),
        sent=INPUT,
        received=("out.0",),
    ),
    Case(
        "functional_all_to_all_single@1",
        "all_to_all_single",
        (0, 2),
        sent=INPUT,
        received=("out.0",),
    ),
    Case(
        "functional_broadcast@1", "broadcast", (0, 2), gives=(1,), sent=INPUT, received=("out.0",)
    ),
    Case(
        "functional_all_reduce_coalesced@1",
        "all_reduce_coalesced",
        (0, 2),
        sent=parts("inputs", 2),
        received=parts("out.0", 2),
    ),
    Case(
        "functional_broadcast_in_place@1",
        "broadcast_",
        (0, 2),
        gives=(1,),
        sent=INPUT,
        received=INPUT,
    ),
    Case("functional_all_reduce_in_place@1", "all_reduce_", (0, 2), sent=INPUT, received=INPUT),
    Case(
        "functional_all_reduce_coalesced_in_place@1",
        "all_reduce_coalesced_",
        (0, 2),
        sent=parts("inputs", 2),
        received=parts("inputs", 2),
    ),
    Case(
        "all_gather_twice@1",
        "_allgather_base_",
        (0, 2),
        sent=("input_tensor",) * 2,
        received=("output_tensor",) * 2,
    ),
    Case("redistribute@1", "all_gather_into_tensor", (0, 2), sent=INPUT, received=("out.0",)),
]

ODD = ["all_reduce_never_waited_for@1", "overwritten@1", "objects@1"]
"""Collectives with tests of their own."""

ARGUMENTS = [*(case.name for case in CASES), *ODD]
STEPS = {name: step for step, name in enumerate(ARGUMENTS, 1)}

AT_LAYER: dict[str, dict[str, Any]] = {
    # Whoever is not the root may be left with a part: read or not, it is recorded.
    "reduce@0": {"receivers": (1, 2), "gets": THREE},
}

BY_OPERATOR = re.compile("functional_.*(in_place|isend|batch)")
"""Called by the operator's name, which only rung op sees."""

each_case = pytest.mark.parametrize(
    ("level", "case"),
    [
        *(pytest.param("op", case, id=f"op-{case.name}") for case in CASES),
        *(
            pytest.param(
                "layer", replace(case, **AT_LAYER.get(case.name, {})), id=f"layer-{case.name}"
            )
            for case in CASES
            if not BY_OPERATOR.match(case.name)
        ),
    ],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collectives")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    jobs, preloaded = Jobs(), Preloaded("torch.distributed.tensor")
    within = {"WITHIN": 1}
    for name, variables, options in (
        ("op a", {}, {}),
        ("op twin", {"RENAME": 1}, {"rehash": True}),
        ("op twisted", {"TWIST": 1}, {}),
        ("layer a", within, {}),
        ("layer twin", {"RENAME": 1, **within}, {"rehash": True}),
        ("layer twisted", {"TWIST": 1, **within}, {}),
        ("unrecorded", {}, None),
    ):
        record = {"path": str(folder / name), "level": name.partition(" ")[0], **(options or {})}
        jobs.add(
            name,
            preloaded.run_ranks,
            PROGRAMS / "collectives.py",
            *ARGUMENTS,
            num_ranks=3,
            env=variables,
            record=None if options is None else record,
            output=folder / f"{name}.txt",
        )
    yield jobs
    jobs.close()
    preloaded.close()


def got(jobs: Jobs, name: str) -> list[str]:
    return sorted(line for line in jobs[name].splitlines() if line.startswith("got "))


def test_every_rank_gets_what_it_gets_unrecorded(jobs: Jobs) -> None:
    expected = got(jobs, "unrecorded")
    assert len(expected) == 3 * len(ARGUMENTS)
    for level in ("op", "layer"):
        assert got(jobs, f"{level} a") == expected
        assert got(jobs, f"{level} twin") == expected


@pytest.mark.parametrize("level", ["op", "layer"])
def test_twins_are_identical(jobs: Jobs, folder: Path, level: str) -> None:
    assert jobs[f"{level} a"] and jobs[f"{level} twin"]
    verdict = compare_json(folder / f"{level} a", folder / f"{level} twin")
    assert verdict["verdict"] == "identical", verdict["summary"]
    assert verdict["notes"] == []


@each_case
def test_the_op_before_it_is_the_origin_and_who_got_it_a_receiver(
    jobs: Jobs, folder: Path, level: str, case: Case
) -> None:
    a, twisted = f"{level} a", f"{level} twisted"
    assert jobs[a] and jobs[twisted]
    verdict = fpdiff.compare(folder / a, folder / twisted, steps=str(STEPS[case.name]))
    rank = int(case.name[-1])
    where = (None, "data") if level == "layer" else ("aten.add_.Tensor", "arguments")
    assert [(o.rank, o.op, o.class_) for o in verdict.origins] == [(rank, *where)]
    assert [r.rank for r in verdict.receivers] == list(case.receivers)
    for receiver in verdict.receivers:
        assert receiver.from_ == [rank]


@each_case
def test_what_is_given_and_what_is_got_are_events(
    jobs: Jobs, folder: Path, level: str, case: Case
) -> None:
    assert jobs[f"{level} a"]
    members = set()
    for rank in THREE:
        answers = case.answers or (case.op,) * len(case.received)
        for kind, ranks, expected in (
            ("sent", case.gives, [(case.op, slot) for slot in case.sent]),
            ("received", case.gets, list(zip(answers, case.received, strict=True))),
        ):
            sites = [site for site, _ in events(folder / f"{level} a", rank, case.name, kind)]
            found = sorted((site["op"].split(".")[1], site["slot"]) for site in sites)
            assert found == (expected if rank in ranks else [])
            # Calls of the same op are told apart by their number.
            names = ("op", "slot", "members", "occurrence")
            assert len({tuple(site[name] for name in names) for site in sites}) == len(sites)
            members |= {site["members"] for site in sites}
    assert members == set(case.members)


def events(run: Path, rank: int, name: str, kind: str) -> list[tuple[dict[str, Any], bytes]]:
    """Return site and digest of the events of a kind in a collective's step."""
    record = fpdiff.open_run(run).ranks[rank]
    sites = {row["site"]: row for row in record.sites().to_pylist()}
    found = [(sites[e["site"]], e["digest"]) for e in record.events(STEPS[name]).to_pylist()]
    return [(site, digest) for site, digest in found if site["kind"] == kind]


def test_an_output_is_recorded_before_it_is_overwritten(jobs: Jobs, folder: Path) -> None:
    assert jobs["op a"] and jobs["op twisted"]
    for name, numbers in (("overwritten@1", [0]), ("all_gather_twice@1", [1])):
        for rank in THREE:
            a, b = (events(folder / run, rank, name, "received") for run in ("op a", "op twisted"))
            differing = [x[0]["occurrence"] for x, y in zip(a, b, strict=True) if x[1] != y[1]]
            assert differing == numbers


@pytest.mark.parametrize(
    ("level", "what"), [("op", "that no op read"), ("layer", "that was not waited for")]
)
def test_what_is_never_waited_for_is_a_blind_spot(
    jobs: Jobs, folder: Path, level: str, what: str
) -> None:
    assert jobs[f"{level} a"]
    for record in fpdiff.open_run(folder / f"{level} a").ranks.values():
        assert record.info["blind_spots"][f"collective output {what} in its step"]


def test_what_is_never_waited_for_is_no_difference(jobs: Jobs, folder: Path) -> None:
    assert jobs["op a"] and jobs["op twisted"]
    step = str(STEPS["all_reduce_never_waited_for@1"])
    a, twisted = folder / "op a", folder / "op twisted"
    assert fpdiff.compare(a, twisted, steps=step).verdict == "identical"
