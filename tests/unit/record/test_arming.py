import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import hide_the_past, info, mlp, read, recorded, train
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_modules
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint

import fpdiff
from fpdiff.fingerprint.record import current
from fpdiff.fingerprint.record.arming import arm
from fpdiff.fingerprint.record.ops.inductor import GraphRecorder
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.store.errors import RecordError

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


def hooks(*models: nn.Module) -> dict[str, Any]:
    """Return everything that a hook could have been put into."""
    modules: Any = torch_modules
    optimizers: Any = torch_optimizer
    names = [n for n in vars(modules) if n.startswith("_global_") and n.endswith("hooks")]
    found: dict[str, Any] = {name: dict(getattr(modules, name)) for name in names}
    found["always"] = dict(modules._global_forward_hooks_always_called)
    found["pre step"] = dict(optimizers._global_optimizer_pre_hooks)
    found["post step"] = dict(optimizers._global_optimizer_post_hooks)
    found["engine"] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    found["script"] = current.script
    for number, model in enumerate(models):
        for name, module in model.named_modules():
            tables = {k: dict(v) for k, v in vars(module).items() if k.endswith("_hooks")}
            found[f"{number} {name}"] = tables
        for name, parameter in model.named_parameters():
            after: Any = parameter._post_accumulate_grad_hooks
            found[f"{number} {name}"] = (dict(after or {}), dict(parameter._backward_hooks or {}))
    return found


def test_every_hook_is_taken_out_in_the_end(run: Path) -> None:
    model = mlp()
    before = hooks(model)
    with recorded(run):
        train(model, steps=2)
        assert hooks(model) != before
    assert hooks(model) == before


def test_every_hook_is_taken_out_after_an_exception(run: Path) -> None:
    model = mlp()
    before = hooks(model)
    with pytest.raises(KeyError, match="mine"), fpdiff.record(run):
        train(model, steps=1)
        raise KeyError("mine")
    assert hooks(model) == before


def test_every_hook_is_taken_out_after_an_error_of_ours(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpdiff.fingerprint.record.modules.hooks import ModuleHooks

    model = mlp()
    before = hooks(model)
    with fpdiff.record(run):
        train(model, steps=1)
        monkeypatch.delattr(ModuleHooks, "_scope")
        with pytest.warns(UserWarning, match="recording stopped"):
            train(model, steps=1)
    assert hooks(model) == before


@pytest.mark.parametrize(
    "missing",
    [
        (torch.autograd, "_engine_run_backward"),
        (clip_grad, "_clip_grads_with_norm_"),
        (torch_optimizer, "register_optimizer_step_post_hook"),
        (GraphRecorder, "watch"),
    ],
    ids=lambda missing: missing[1],
)
def test_what_cannot_be_put_in_whole_is_taken_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[Any, str]
) -> None:
    """In a torch that has another name for something, say."""
    monkeypatch.delattr(*missing)
    before, finders, modes = _hooks_in_any_torch(), [*sys.meta_path], _num_modes()
    with pytest.raises(AttributeError, match=missing[1]):
        arm(Settings(out=str(run), level="op"))
    assert _hooks_in_any_torch() == before
    assert (sys.meta_path, _num_modes()) == (finders, modes)


def _num_modes() -> int:
    count: int = torch._C._len_torch_dispatch_stack()
    return count


def _hooks_in_any_torch() -> dict[str, Any]:
    """Return everything that `arm` puts something into, None where torch lacks it."""
    names = ("_engine_run_backward", "_clip_grads_with_norm_", "_has_any_global_hook")
    holders: tuple[Any, ...] = (torch.autograd, clip_grad, torch_modules)
    found = {n: getattr(h, n, None) for h, n in zip(holders, names, strict=True)}
    tables = {n: dict(t) for n, t in vars(torch_modules).items() if n.endswith("_hooks")}
    optimizers: Any = torch_optimizer
    pre, post = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    return found | tables | {"pre": dict(pre), "post": dict(post), "script": current.script}


def test_no_module_gets_a_hook_of_its_own(run: Path) -> None:
    model = mlp()
    with recorded(run):
        train(model, steps=1)
        for module in model.modules():
            assert not module._forward_hooks and not module._forward_pre_hooks
            assert not module._backward_hooks and not module._backward_pre_hooks


def test_a_second_recording_is_refused_with_a_warning(run: Path) -> None:
    model = mlp()
    other = run.with_name("other")
    with recorded(run) as events:
        refused = pytest.warns(UserWarning, match=f"recorded already; {other} is not written")
        with refused as caught, fpdiff.record(other):
            model(X)
        model(X)
    assert caught[0].filename == __file__
    assert not other.exists() and len(events.pick(kind="output", module="")) == 2


def test_arming_twice_is_an_error(run: Path) -> None:
    refused = pytest.raises(RecordError, match="this process is being recorded already")
    with fpdiff.record(run), refused:
        arm(Settings(out=str(run)))


def test_one_recording_after_another(run: Path) -> None:
    model = mlp()
    for name in ("a", "b"):
        with recorded(run.with_name(name)) as events:
            train(model, steps=1)
        assert {e.step for e in events} == {0}


def test_an_existing_run_is_not_overwritten(run: Path) -> None:
    with recorded(run):
        mlp()(X)
    before = hooks()
    refused = pytest.raises(RecordError, match="exists: give another --out, or --force")
    with refused, fpdiff.record(run):
        raise AssertionError("the block was entered")
    assert hooks() == before
    with recorded(run, force=True) as events:
        train(mlp(), steps=1)
    assert events.pick(kind="loss")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "atom"}, "level 'atom'"),
        ({"steps": "x"}, "--steps 'x'"),
        ({"ranks": "3-1"}, "--ranks '3-1'"),
        ({"modules": "["}, r"--modules '\['"),
    ],
)
def test_a_wrong_option_makes_no_run(run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message), fpdiff.record(run, **options):
        raise AssertionError("the block was entered")
    assert not run.exists()


def test_a_rank_of_a_launch_joins_its_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "host")
    monkeypatch.setenv("MASTER_PORT", "1")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        with fpdiff.record(run):
            mlp()(X)
    assert list(fpdiff.open_run(run).ranks) == [0, 1]
    assert [e.digest for e in read(run, 0) if e.kind == "output"] == [
        e.digest for e in read(run, 1) if e.kind == "output"
    ]


# A recorded training computes what an unrecorded one does.


class Zoo(nn.Module):
    """Much of what could be disturbed: in-place code, views, draws, checkpoints, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.25, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Tanh())
        self.out = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.inp(x))
        y = self.encoder(y.unsqueeze(0)).squeeze(0)
        y = self.drop(self.act(y))
        y = checkpoint(self.block, y, use_reentrant=False)
        if self.training:  # Without gradients it warns.
            y = y + checkpoint(self.block, y, use_reentrant=True)
        y[:, 0] = 1
        y = F.dropout(y.t().contiguous().t(), 0.1)
        return self.out(y)  # type: ignore[no-any-return]


def _trajectory() -> list[torch.Tensor]:
    torch.manual_seed(11)
    model = Zoo()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen: list[torch.Tensor] = []
    for _ in range(3):
        for _ in range(2):
            loss = model(torch.rand(3, 4)).square().mean()
            loss.backward()
            seen.append(loss.detach().clone())
        seen.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).clone())
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            seen.append(model(X).clone())
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        model.train()
    seen += [value.clone() for value in model.state_dict().values()]
    seen += [value.clone() for value in average.state_dict().values()]
    return [*seen, torch.get_rng_state()]


@pytest.mark.parametrize(
    "options",
    [
        {"level": "step"},
        {"level": "layer"},
        {"stats": True},
        {"rehash": True},
        {"level": "step", "stats": True, "rehash": True},
        {"modules": "block", "steps": "1"},
    ],
    ids=lambda options: " ".join(map(str, options.items())),
)
def test_a_recorded_training_is_bit_for_bit_the_unrecorded_one(
    run: Path, options: dict[str, Any]
) -> None:
    expected = _trajectory()
    with fpdiff.record(run, **options):
        found = _trajectory()
    assert info(run)["finished"] and read(run)
    assert len(expected) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_the_fast_path_of_an_encoder_layer_stays_on(run: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.rand(1, 3, 8)
    with torch.no_grad():
        expected = layer(x)
        with recorded(run) as events:
            assert torch.equal(layer(x), expected)
    # The fused kernel calls no children.
    assert events.pick(kind="output").column("module") == [""]


def test_code_that_forbids_saved_tensors_changes_still_works(run: Path) -> None:
    with recorded(run):
        out = mlp()(X)
        out.data.mul_(2)
        view = out.view(-1)
        view.add_(1)
        out.sum().backward()


def test_memory_is_freed_as_without_a_recorder(run: Path) -> None:
    import weakref

    model = mlp()
    with recorded(run):
        out = model(X)
        alive = weakref.ref(out)
        out.sum().backward()
        del out
        assert alive() is None
