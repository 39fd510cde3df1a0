import math

import pytest
import torch
from late_streams import LateStaging
from strategies import raw_bytes

from fpdiff.fingerprint.digest import staging as staging_module
from fpdiff.fingerprint.digest.algorithms import ALGORITHMS
from fpdiff.fingerprint.digest.cache import DigestCache
from fpdiff.fingerprint.digest.host import PlainView, Undigestible, look
from fpdiff.fingerprint.digest.mix128 import reference
from fpdiff.fingerprint.digest.staging import Staging, digest_of_number


def view_of(tensor: torch.Tensor) -> PlainView:
    view = look(tensor)
    assert view is not None
    return view


def put(staging: Staging, *tensors: torch.Tensor) -> bytearray:
    return bytearray(b"".join(staging.digest(t, view_of(t)) for t in tensors))


def digests(*tensors: torch.Tensor) -> bytes:
    return b"".join(reference.digest(raw_bytes(tensor)) for tensor in tensors)


def test_placeholders_become_digests_of_what_the_tensors_were() -> None:
    staging = LateStaging()
    tensors = [torch.rand(n, n).t() for n in range(5)]
    expected = digests(*tensors)
    events = put(staging, *tensors)
    for tensor in tensors:
        tensor.zero_()
    until = staging.begin_copies()
    put(staging, torch.ones(9))  # The buffer is used again before the copy has arrived.
    assert not staging.has_arrived(until)
    staging.fill(events, until)
    assert events == expected and staging.log == ["waited"]


def test_copies_may_arrive_out_of_order() -> None:
    staging = LateStaging()
    tensors = [torch.rand(3) for _ in range(3)]
    events, until = [], []
    for tensor in tensors:
        events.append(put(staging, tensor))
        until.append(staging.begin_copies())
    staging.copies[1].has_arrived = staging.copies[2].has_arrived = True
    assert [staging.has_arrived(number) for number in until] == [False, False, False]
    staging.copies[0].has_arrived = True
    assert staging.has_arrived(until[0])
    for number in (0, 1, 2):
        staging.fill(events[number], until[number])
        assert events[number] == digests(tensors[number])
    assert staging.log == ["used"] * 3


def test_what_comes_later_is_not_waited_for() -> None:
    staging = LateStaging()
    first, second = torch.rand(2, 3)
    events, until = put(staging, first), staging.begin_copies()
    staging.copies[0].has_arrived = True
    put(staging, second)
    staging.begin_copies()
    assert staging.has_arrived(until)
    staging.fill(events, until)
    assert events == digests(first) and not staging.copies[1].has_arrived


def test_an_event_may_be_written_a_step_later_but_not_two() -> None:
    staging = LateStaging()
    first, second = torch.rand(2, 3)
    kept = put(staging, first)
    late = kept.copy()
    events = put(staging, second)
    staging.fill(events, staging.begin_copies())
    staging.end_step()
    staging.fill(kept, staging.begin_copies())
    assert kept == digests(first)
    staging.end_step()
    with pytest.raises(KeyError):  # Rather than a wrong digest.
        staging.fill(late, staging.begin_copies())


def test_what_is_digested_together_is_queued_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "ROWS", 8)
    staging = LateStaging()
    tensors = [torch.rand(n, 2) for n in range(7)]
    tensors[3] = tensors[3].t()  # Is put by itself, in its turn.
    number = torch.tensor(2.0)
    with staging.together():
        events = put(staging, *tensors[:2])
        with staging.together():
            events += put(staging, *tensors[2:5])
        late = staging.number(number)
        events += put(staging, tensors[5])
    assert staging.together_put == [3, 1, 1]
    events += put(staging, tensors[6])
    expected = digests(*tensors)
    for tensor in tensors:
        tensor.zero_()
    until = staging.begin_copies()
    staging.fill(events, until)
    assert events == expected
    assert staging.values({0: late}, until) == {0: 2.0}
    assert staging.together_put == [3, 1, 1]


def test_what_is_digested_together_may_be_more_than_the_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging_module, "ROWS", 4)
    staging = LateStaging()
    tensors = [torch.rand(2) for _ in range(11)]
    with staging.together():
        events = put(staging, *tensors)
        until = staging.begin_copies()  # A flush within.
        staging.fill(events, until)
    assert events == digests(*tensors) and staging.together_put == [4, 4, 3]


def test_what_was_given_is_queued_though_the_block_raises() -> None:
    staging, tensor = LateStaging(), torch.rand(3)
    events = bytearray()
    with pytest.raises(ValueError), staging.together():
        events += put(staging, tensor)
        raise ValueError
    staging.fill(events, staging.begin_copies())
    assert events == digests(tensor)


def test_a_full_buffer_is_copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "ROWS", 4)
    staging = LateStaging()
    tensors = [torch.rand(2) for _ in range(11)]
    events = put(staging, *tensors)
    staging.fill(events, staging.begin_copies())
    assert events == digests(*tensors) and len(staging.copies) == 3


def test_digests_that_are_there_stay_as_they_are() -> None:
    staging = LateStaging()
    tensor, other = torch.rand(3), bytes(range(16))
    placeholder = bytes(put(staging, tensor))
    unknown = placeholder[:8] + (1 << 50).to_bytes(8, "little")  # By chance like a placeholder.
    events = bytearray(other + placeholder + unknown + placeholder)
    staging.fill(events, staging.begin_copies())
    assert events == other + digests(tensor) + unknown + digests(tensor)
    empty = bytearray()
    staging.fill(empty, staging.begin_copies())
    assert empty == b""


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int32, torch.bool],
)
def test_a_number_comes_with_the_digests(dtype: torch.dtype) -> None:
    staging = LateStaging()
    before, tensor = torch.rand(3), torch.tensor(1.5).to(dtype)
    number = tensor.item()
    events = put(staging, before)
    late = staging.number(tensor)
    events += staging.placeholder(late)
    tensor.zero_()
    until = staging.begin_copies()
    assert staging.values({}, until) == {} and not staging.log
    assert staging.values({7: late}, until) == {7: number} and staging.log == ["waited"]
    staging.fill(events, until)
    assert events == digests(before) + digest_of_number(float(number))
    staging.end_step()
    assert staging.values({0: late}, until) == {0: number}


def test_a_number_that_is_none_stays_one() -> None:
    staging = LateStaging()
    late = staging.number(torch.tensor([float("nan")]))
    (value,) = staging.values({0: late}, staging.begin_copies()).values()
    assert math.isnan(value)


def test_what_cannot_be_read_gets_no_placeholder() -> None:
    staging = LateStaging()
    meta = torch.empty(3, device="meta")
    with pytest.raises(Undigestible, match="meta tensor"):
        staging.digest(meta, view_of(meta))
    assert staging.begin_copies() == 0 and not staging.copies


def test_a_cache_gives_a_digest_itself_where_it_is_needed_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = property(lambda view: False, lambda view, value: None)
    monkeypatch.setattr(PlainView, "is_on_host", elsewhere)
    staging = LateStaging()
    cache = DigestCache(ALGORITHMS["mix128"], staging)
    tensor, sparse = torch.rand(3), torch.eye(3).to_sparse()
    assert cache.digest_now(tensor, look(tensor)) == digests(tensor)
    assert cache.digest(sparse, look(sparse)) == cache.digest_now(sparse, look(sparse))
    assert staging.begin_copies() == 0
    placeholder = bytearray(cache.digest(tensor, look(tensor)))
    assert placeholder != digests(tensor)
    staging.fill(placeholder, staging.begin_copies())
    assert placeholder == digests(tensor)


def test_a_host_tensor_is_not_taken() -> None:
    assert not Staging().takes(torch.rand(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_digests_its_own_tensors_later() -> None:
    staging = Staging()
    tensors = [torch.rand(n, 7, device="cuda").bfloat16().t() for n in range(1, 50)]
    expected = digests(*(tensor.cpu() for tensor in tensors))
    events = put(staging, *tensors)
    for tensor in tensors:
        tensor.zero_()
    until = staging.begin_copies()
    put(staging, *tensors)
    staging.fill(events, until)
    assert staging.takes(tensors[0]) and events == expected
    with torch.cuda.stream(torch.cuda.Stream()):
        assert not staging.takes(tensors[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(Undigestible, match="graph capture"):
        staging.digest(tensors[0], view_of(tensors[0]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_digests_many_tensors_in_one_launch_and_waits_for_nothing() -> None:
    staging = Staging()
    tensors = [torch.rand(n, 1000, device="cuda").bfloat16() for n in range(1, 300)]
    expected = digests(*(tensor.cpu() for tensor in tensors))
    found = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):  # The second time they are laid out already.
            with staging.together():
                found.append(put(staging, *tensors))
        for tensor in tensors:
            tensor.zero_()
        until = staging.begin_copies()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for events in found:
        staging.fill(events, until)
    assert found == [expected, expected]
