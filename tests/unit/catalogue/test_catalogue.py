"""The catalogue names operators that exist, and says for each what a person needs."""

from typing import Any

import pytest
import torch

from fpdiff.fingerprint.catalogue import base_name, load, nondeterminism

KNOWN = load("nondeterministic")["ops"]
MEMORY = load("memory")


def exists(op: str) -> bool:
    namespace, name = op.split(".", 1)
    return hasattr(getattr(torch.ops, namespace), name)


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry["ops"][0])
def test_each_entry_says_where_why_and_what_helps(entry: dict[str, Any]) -> None:
    assert set(entry) == {"ops", "devices", "why", "fix", "source"}
    assert set(entry["devices"]) <= {"cpu", "cuda"} and entry["devices"]
    assert all(entry[key] for key in ("why", "fix", "source"))


def test_no_operator_is_listed_twice() -> None:
    names = [op for entry in KNOWN for op in entry["ops"]]
    assert len(names) == len(set(names))


def test_operators_of_torch_exist() -> None:
    """A misspelt name would never match; libraries' own operators need not be installed."""
    names = [op for entry in KNOWN for op in entry["ops"]]
    names += [*MEMORY["allocate"]["ops"], *MEMORY["fill"]["ops"]]
    for part in ("unread", "unread_where", "silent_writes"):
        names += MEMORY[part]["ops"]
    names += MEMORY["undefined"]["outputs"]
    missing = [name for name in names if name.startswith("aten.") and not exists(name)]
    assert not missing


@pytest.mark.parametrize(("part", "key"), [("silent_writes", "ops"), ("unread", "ops")])
def test_arguments_that_are_named_exist(part: str, key: str) -> None:
    for op, names in MEMORY[part][key].items():
        namespace, name = op.split(".", 1)
        if namespace == "aten":
            packet = getattr(torch.ops.aten, name)
            schema = getattr(packet, packet.overloads()[0])._schema
            assert set(names) <= {argument.name for argument in schema.arguments}, op


@pytest.mark.parametrize("op", MEMORY["unread_where"]["ops"])
def test_what_rules_an_argument_out_is_an_argument(op: str) -> None:
    name, _, unread = MEMORY["unread_where"]["ops"][op]
    schema = getattr(torch.ops.aten, op.split(".", 1)[1]).default._schema
    assert {name, *unread} <= {argument.name for argument in schema.arguments}


def test_overloads_share_an_entry() -> None:
    assert base_name("aten.index_put.default") == "aten.index_put"
    assert base_name("aten.index_put") == "aten.index_put"
    assert nondeterminism("aten.index_put.default") is nondeterminism("aten.index_put")
    assert nondeterminism("aten.tanh.default") is None
