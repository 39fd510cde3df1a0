"""Trains in many ways that an observer could disturb, and prints a checksum of each one's results.

Each case_* function is a way, see common.py. Any warning is an error.
"""

import copy
import dataclasses
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch._dynamo
from common import STEPS, batch, fit, run_cases, square
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(4, width), nn.Dropout(0.2), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.drop(torch.tanh(self.inp(x))))
        return result


# Optimizers


def case_plain_loop() -> Iterable[Tensor]:
    net = Net()
    return fit(net, square(net))


def case_adamw() -> Iterable[Tensor]:
    all_options: list[dict[str, Any]] = [
        {"foreach": False},
        {"foreach": True},
        {"fused": True},
        {"amsgrad": True},
    ]
    for options in all_options:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, **options)
        yield from fit(net, square(net), optimizer)
        for state in optimizer.state.values():
            yield from state.values()


def case_lbfgs() -> Iterable[Tensor]:
    net, x = nn.Linear(4, 1), batch()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (net(x) - 1).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure) for _ in range(STEPS)]
    return [*(loss.detach() for loss in losses), *net.parameters()]


def case_accumulation_and_clipping() -> Iterable[Tensor]:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(STEPS):
        for _ in range(3):
            (net(batch()).square().mean() / 3).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        nn.utils.clip_grad_value_(net.parameters(), 0.05)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
    return net.parameters()


def case_autocast_and_scaler() -> Iterable[Tensor]:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(batch() * 1e3).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)  # Skips the first, whose gradients are not finite.
        scaler.update()
    return [torch.tensor(scaler.get_scale()), *net.parameters()]


def case_two_optimizers() -> Iterable[Tensor]:
    generator, critic = nn.Linear(4, 4), Net()
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, critic)]
    for _ in range(STEPS):
        fake = generator(batch())
        optimizers[1].zero_grad()
        (critic(fake.detach()).mean() - critic(batch()).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[0].step()
    return [*generator.parameters(), *critic.parameters()]


def case_sparse_gradients() -> Iterable[Tensor]:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    return fit(table, lambda: table(torch.randint(10, (5,))).square().sum(), optimizer)


def case_averages() -> Iterable[Tensor]:
    net = Net()
    by_hand = copy.deepcopy(net).requires_grad_(False)
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        fit(net, square(net), optimizer, steps=1)
        averaged.update_parameters(net)
        for mean, parameter in zip(by_hand.parameters(), net.parameters(), strict=True):
            mean.data.mul_(0.9).add_(parameter.data, alpha=0.1)
    net.eval()
    with torch.no_grad():
        return [*averaged.parameters(), *by_hand.parameters(), by_hand(batch()), averaged(batch())]


def case_master_weights() -> Iterable[Tensor]:
    net = Net().to(torch.bfloat16)
    masters = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    optimizer = torch.optim.Adam(masters, lr=0.01)
    for _ in range(STEPS):
        net(batch().bfloat16()).square().mean().backward()
        for master, parameter in zip(masters, net.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        for master, parameter in zip(masters, net.parameters(), strict=True):
            parameter.data = master.data.bfloat16()
    return [*masters, *net.parameters()]


# Forward


@dataclasses.dataclass
class Answer:
    """An output of a module."""

    hidden: Tensor
    extra: dict[str, Any]


class Pair(NamedTuple):
    """Another."""

    first: Tensor
    second: Tensor | None


class Returns(nn.Module):
    """Returns whatever its function makes of a linear layer's output."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make, self.linear = make, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.make(self.linear(x))


def case_kinds_of_output() -> Iterable[Tensor]:
    kept: list[Tensor] = []
    modules = nn.ModuleList(
        Returns(make)
        for make in (
            lambda y: Answer(y, {"twice": [2 * y, "text", None, object()]}),
            lambda y: {"y": y, 7: (y.sum(), 3)},
            lambda y: Pair(y, None),
            lambda y: kept.append(y),
            lambda y: (part for part in y.unbind(0)),
            lambda y: y.unbind(0),
        )
    )

    def loss() -> Tensor:
        x = batch()
        answer, mapping, pair, nothing, parts, views = (module(x) for module in modules)
        assert nothing is None
        total: Tensor = answer.hidden.sum() + answer.extra["twice"][0].sum() + mapping["y"].sum()
        total += pair.first.square().sum() + kept.pop().sum() + sum(part.sum() for part in parts)
        total += views[0].sum()
        return total

    return fit(modules, loss)


class Fragile(nn.Module):
    """Catches the exceptions of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.good, self.bad = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.bad(x)
        except RuntimeError:
            x = self.good(x)
        return x


def case_exceptions_inside_forward() -> Iterable[Tensor]:
    fragile = nn.Sequential(Fragile(), nn.Linear(4, 1))
    results = fit(fragile, lambda: fragile(batch()).square().mean())
    try:
        fragile(batch(3, 5))
    except RuntimeError:
        results += fit(fragile, lambda: fragile(batch()).square().mean())
    return results


class Shared(nn.Module):
    """Calls one layer three times, and ties weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.alias, self.head = self.layer, nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.embed(tokens))
        result: Tensor = self.head(self.alias(torch.relu(self.layer(x))))
        return result


def case_shared_modules() -> Iterable[Tensor]:
    shared = Shared()

    def loss() -> Tensor:
        tokens = torch.randint(7, (5,))
        return F.cross_entropy(shared(tokens), tokens)

    return fit(shared, loss)


class InPlace(nn.Module):
    """Changes outputs and arguments where they lie."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(2, 1)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x.mul_(2)
        y = self.a(x)
        y += 1
        y = self.act(y)
        left, right = y.view(-1, 2, 2).unbind(1)
        result: Tensor = self.b(left * right)
        result.mul_(0.5)
        return result


def case_in_place() -> Iterable[Tensor]:
    net = InPlace()
    return [*fit(net, square(net)), net.calls]


def case_fused_encoder_layer() -> Iterable[Tensor]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    head = nn.Linear(8, 1)
    both = nn.Sequential(layer, head)
    results = fit(both, lambda: both(torch.randn(2, 3, 8)).square().mean())
    both.eval()
    with torch.no_grad():
        results.append(both(torch.randn(2, 3, 8)))
    with torch.inference_mode():
        results.append(both(torch.randn(2, 3, 8)))
    both.train()
    return results + fit(both, lambda: both(torch.randn(2, 3, 8)).square().mean())


def case_recurrent() -> Iterable[Tensor]:
    net, head = nn.LSTM(4, 5, num_layers=2, dropout=0.1), nn.Linear(5, 1)
    both = nn.ModuleList([net, head])

    def loss() -> Tensor:
        packed = pack_padded_sequence(torch.randn(4, 2, 4), torch.tensor([4, 2]))
        output, _ = net(packed)
        result: Tensor = head(output.data).square().mean()
        return result

    return fit(both, loss)


def case_normalisation_and_layouts() -> Iterable[Tensor]:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2))
    for parameter in net.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def loss() -> Tensor:
        y = net(torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last))
        assert y.is_contiguous(memory_format=torch.channels_last)
        result: Tensor = y.square().mean()
        return result

    return [*fit(net, loss), *net.buffers()]


def case_parametrized_and_lazy() -> Iterable[Tensor]:
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        nn.LazyLinear(2),
    )
    net(batch())
    return fit(net, square(net))


def _halve(module: nn.Module, inputs: Any, outputs: Any) -> tuple[Tensor]:
    return (inputs[0] * 0.5,)


def case_hooks_of_the_script() -> Iterable[Tensor]:
    net, seen = Net(), list[Tensor]()
    net.inp.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net.inp.register_forward_hook(lambda module, args, output: output + 1)
    net.out.register_full_backward_hook(_halve)
    net.inp.weight.register_hook(lambda gradient: gradient * 3)

    def loss() -> Tensor:
        y = net(batch())
        y.register_hook(seen.append)
        result: Tensor = y.square().mean()
        return result

    return [*fit(net, loss), *seen]


class Wrapped(Tensor):
    """A subclass that counts the functions called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # Torch's lack.


class CountOps(TorchDispatchMode):
    """A mode of the script that counts operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Torch's lack.
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def case_subclasses_and_modes() -> Iterable[Tensor]:
    net = Net()
    before = Wrapped.calls
    results = fit(net, lambda: net(batch().as_subclass(Wrapped)).square().mean())
    calls = torch.tensor(Wrapped.calls - before)
    with CountOps() as mode:
        results += fit(net, square(net))
    return [*(r.as_subclass(Tensor) for r in results), calls, torch.tensor(mode.calls)]


class Stubborn(nn.Module):
    """Has unusual ideas of what it means to be equal, true or long."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def __bool__(self) -> bool:
        raise AssertionError("nobody may ask")

    def __len__(self) -> int:
        raise AssertionError("nobody may ask")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody may ask")

    __hash__ = nn.Module.__hash__

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        result: Tensor = self.linear(x) * scale
        return result


def case_stubborn_modules() -> Iterable[Tensor]:
    net = Stubborn()
    return fit(net, lambda: net(batch(), scale=0.5).square().mean())


# Backward


class Checkpointed(nn.Module):
    """Recomputes its middle in backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant, self.inp, self.middle = reentrant, nn.Linear(4, 4), Net()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.middle, self.inp(x), use_reentrant=self.reentrant)
        return result


def case_checkpointing() -> Iterable[Tensor]:
    net = Checkpointed(reentrant=False)
    return fit(net, square(net))


def case_checkpointing_reentrant() -> Iterable[Tensor]:
    net = Checkpointed(reentrant=True)
    return fit(net, square(net))


def case_double_backward() -> Iterable[Tensor]:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss() -> Tensor:
        x = batch().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        result: Tensor = (slope.norm(dim=1) - 1).square().mean()
        return result

    return fit(net, loss)


def case_backward_twice() -> Iterable[Tensor]:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        y = net(batch())
        y.mean().backward(retain_graph=True)
        torch.autograd.backward([y.square().mean(), y.sum()])
        optimizer.step()
    return net.parameters()


class Scale(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * 2 + 0 * x


def case_own_functions() -> Iterable[Tensor]:
    net = Net()
    apply: Callable[[Tensor], Tensor] = Scale.apply
    return fit(net, square(lambda x: apply(net(x))))


# Transforms and compilers


class PerSample(nn.Module):
    """Calls a layer under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.func.vmap(self.layer)(x)
        return result


def case_vmap() -> Iterable[Tensor]:
    net = PerSample()
    return fit(net, square(net))


def case_functional_gradients() -> Iterable[Tensor]:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), batch()
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(net, weights, (row,)).sum()
        return result

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    tangents = torch.func.jvp(net, (x,), (torch.ones_like(x),))
    return [*per_sample.values(), *tangents, *fit(net, lambda: net(x).square().mean())]


def case_compile() -> Iterable[Tensor]:
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        compiled = torch.compile(net, backend=backend)
        yield from fit(net, square(compiled))
        counters = torch._dynamo.utils.counters
        for name in ("stats", "frames", "graph_break"):
            for key, count in sorted(counters[name].items()):
                print(f"compile: {backend} {name} {key} {count}")


def case_compiled_parts() -> Iterable[Tensor]:
    torch._dynamo.reset()
    net = Net()
    net.inp.compile(backend="eager")
    return fit(net, square(net))


def case_tracing() -> Iterable[Tensor]:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    results = fit(net, square(net))
    exported = torch.export.export(net, (batch(),)).module()
    symbolic = torch.fx.symbolic_trace(net)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        net(torch.empty(2, 4))
    with torch.device("meta"):
        copied = nn.Linear(4, 4)
        assert copied(torch.empty(2, 4)).is_meta
    x = batch()
    return [*results, exported(x), symbolic(x), net(x)]


# Around the training


def case_copies_and_pickles() -> Iterable[Tensor]:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    fit(net, square(net), optimizer)
    y = net(batch())
    y.sum().backward()
    twin = copy.deepcopy(net)
    restored: nn.Module = pickle.loads(pickle.dumps(net))
    state = copy.deepcopy(optimizer.state_dict())
    other = torch.optim.Adam(twin.parameters(), lr=0.01)
    other.load_state_dict(state)
    results = fit(twin, lambda: twin(batch()).square().mean(), other)
    return [*results, *restored.parameters(), pickle.loads(pickle.dumps(y.detach()))]


def case_nothing_is_kept_alive() -> Iterable[Tensor]:
    watched = _train_and_watch()
    return [torch.tensor([ref() is not None for ref in watched])]


def _train_and_watch() -> list["weakref.ref[Any]"]:
    """Train; return weak references to the model and its optimizer, which end with this call."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watched: list[weakref.ref[Any]] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = batch()
        hidden = net.inp(x)
        loss = net.out(net.drop(hidden)).square().mean()
        watched.extend(weakref.ref(kept) for kept in (x, hidden, loss))
        loss.backward()
        del x, hidden, loss
        alive = sum(ref() is not None for ref in watched)
        assert alive == 0, f"{alive} tensors live on after backward"
        optimizer.step()
    return [weakref.ref(net), weakref.ref(optimizer)]


def case_threads() -> Iterable[Tensor]:
    net, results = Net(), list[Tensor]()

    def evaluate() -> None:
        with torch.no_grad():
            results.append(net(torch.ones(2, 4)))

    def step() -> Tensor:
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        loss: Tensor = net(batch()).square().mean()
        return loss

    return [*fit(net, step), *results]


def case_data_loader() -> Iterable[Tensor]:
    net = Net()
    loader = DataLoader(TensorDataset(batch(12)), batch_size=4, shuffle=True, num_workers=1)
    batches: list[Tensor] = []
    for (x,) in loader:
        batches.append(x)
        yield from fit(net, square(net, batches.pop), steps=1)


def case_evaluation_between() -> Iterable[Tensor]:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        yield from fit(net, square(net), optimizer, steps=1)
        net.eval()
        with torch.inference_mode():
            yield net(batch()).clone()
        net.train()
    yield torch.tensor([value for value in _flat(optimizer.state_dict()["param_groups"])])


def _flat(groups: Iterable[dict[str, Any]]) -> Iterator[float]:
    for group in groups:
        yield from (float(v) for v in group.values() if isinstance(v, (int, float)))


if __name__ == "__main__":
    run_cases(globals())
