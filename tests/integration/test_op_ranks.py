"""Several ranks at rung op: who began it, who only received it, and what is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import PROGRAMS, Jobs, Preloaded, compare_json

import fpdiff


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    jobs, preloaded = Jobs(), Preloaded()
    for name, twist, options in (
        ("a", "", {}),
        ("twin", "", {"rehash": True}),
        ("both", "both", {}),
        ("branch", "branch", {}),
        ("branch, logged", "branch", {}),
        ("minimum", "minimum", {}),
        ("alone", "", {"ranks": "1"}),
        ("unused", "", {}),
        ("unused, twin", "", {}),
        ("unused, branch", "branch", {}),
    ):
        jobs.add(
            name,
            preloaded.run_ranks,
            PROGRAMS / "two_ranks.py",
            env={
                "TWIST": twist,
                "LOG": "1" if "logged" in name else "",
                "UNUSED": "8" if "unused" in name else "0",
            },
            record={"path": str(folder / name), "level": "op", **options},
            output=folder / f"{name}.txt",
        )
    yield jobs
    jobs.close()
    preloaded.close()


def verdict_on(jobs: Jobs, folder: Path, name: str) -> dict[str, Any]:
    for job in ("a", name):
        jobs[job]
    return compare_json(folder / "a", folder / name)


def test_twins_are_identical_though_clocks_are_not(jobs: Jobs, folder: Path) -> None:
    verdict = verdict_on(jobs, folder, "twin")
    assert verdict["verdict"] == "identical", verdict["summary"]
    assert "lead to no other difference" in verdict["notes"][0]


def test_two_origins_on_two_ranks_are_both_named(jobs: Jobs, folder: Path) -> None:
    verdict = verdict_on(jobs, folder, "both")
    found = [(o["rank"], o["step"], o["phase"], o["op"], o["class"]) for o in verdict["origins"]]
    assert found == [(rank, 2, "forward", "aten.mul.Tensor", "arguments") for rank in (0, 1)]


def test_another_reduction_is_another_argument(jobs: Jobs, folder: Path) -> None:
    for job in ("a", "minimum"):
        jobs[job]
    told = []
    for name in ("a", "minimum"):
        record = fpdiff.open_run(folder / name).ranks[0]
        sites = {row["site"]: row for row in record.sites().to_pylist()}
        events = [(sites[e["site"]], e) for e in record.events(1).to_pylist()]
        told.append(
            [e["value"] for s, e in events if "reduce_op" in s["slot"] and s["phase"] == "other"]
        )
    assert told[0] != told[1] and len(told[0]) == len(told[1]) == 2


# With a collective more, in one run only, which nothing depends on, the others count on from there.
@pytest.mark.parametrize("name", ["branch", "branch, logged"])
def test_a_branch_on_one_rank_is_structure_there_and_received_elsewhere(
    jobs: Jobs, folder: Path, name: str
) -> None:
    verdict = verdict_on(jobs, folder, name)
    first = verdict["origins"][0]
    assert (first["rank"], first["step"], first["class"]) == (1, 2, "structure")
    assert first["op"] == "aten.relu.default" and first["a"] is None
    assert {o["rank"] for o in verdict["origins"]} == {1}
    assert [(r["rank"], r["from"]) for r in verdict["receivers"]] == [(0, [1])]
    assert "allreduce" in verdict["receivers"][0]["via"]


def test_the_order_in_which_ddp_zeroes_unused_gradients_is_nobodys(
    jobs: Jobs, folder: Path
) -> None:
    # It is that of their addresses: in another process, with luck, another one.
    verdicts = []
    for name in ("unused, twin", "unused, branch"):
        for job in ("unused", name):
            jobs[job]
        verdicts.append(compare_json(folder / "unused", folder / name))
    twin, branch = verdicts
    assert twin["verdict"] == "identical", twin["summary"]
    origins = [(o["rank"], o["step"], o["op"]) for o in branch["origins"]]
    assert origins[0] == (1, 2, "aten.relu.default")
    assert {(rank, step) for rank, step, _ in origins} == {(1, 2)}


def test_a_missing_rank_is_named_and_the_rest_compared(jobs: Jobs, folder: Path) -> None:
    verdict = verdict_on(jobs, folder, "alone")
    assert verdict["verdict"] == "identical", verdict["summary"]
    assert verdict["compared"]["ranks"] == [1]
    assert any("B has no rank 0" in note for note in verdict["notes"])


def test_what_came_from_a_missing_rank_is_not_blamed_on_this_one(jobs: Jobs, folder: Path) -> None:
    for job in ("alone", "both"):
        jobs[job]
    a, b = fpdiff.open_run(folder / "alone"), fpdiff.open_run(folder / "both")
    assert sorted(a.ranks) == [1] and sorted(b.ranks) == [0, 1]
    verdict = compare_json(folder / "alone", folder / "both")
    assert {o["class"] for o in verdict["origins"]} == {"arguments"}


def test_collectives_say_who_takes_part(jobs: Jobs, folder: Path) -> None:
    assert jobs["a"] is not None
    record = fpdiff.open_run(folder / "a").ranks[0]
    rows = [row for row in record.sites().to_pylist() if row["members"]]
    assert {row["members"] for row in rows} == {"0,1"}
    assert {row["kind"] for row in rows} == {"sent", "received", "arguments", "input"}
    assert {row["module"] for row in rows} == {""}
