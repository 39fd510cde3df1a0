"""Paths of modules and parameters, as a reader of the script knows them.

The first module called at the top level that has a trainable parameter is *the* root, path "".
Every other one called at the top level (a loss, a transform, a teacher) is named `~Class`, the
second of its class `~Class.2`. A part of the root may be called before the root itself is, in a
constructor that tries it out for instance: then the root takes over. Wrappers add nothing to a
path: a model inside DDP is called what it is called outside.
"""

import weakref
from collections import Counter
from collections.abc import Iterator

from torch import nn

from fpdiff.fingerprint.record.identity import IdentityTable

_COMPILED = "_orig_mod"
_WRAPPED = (_COMPILED, "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class Names:
    """Names modules the first time their root is met, and parameters with them."""

    def __init__(self) -> None:
        """Start with no root known."""
        self._paths: IdentityTable[str] = IdentityTable()
        self._wrappers: IdentityTable[bool] = IdentityTable()
        self._root_of: IdentityTable[weakref.ref[nn.Module]] = IdentityTable()
        self._roots: list[weakref.ref[nn.Module]] = []
        self._labels: Counter[str] = Counter()
        self._has_main = False

    def roots(self) -> list[nn.Module]:
        """Return the roots that are alive, in the order in which they were met."""
        return [root for ref in self._roots if (root := ref()) is not None]

    def num_met(self) -> int:
        """Return how many roots have been met, those that are gone included."""
        return len(self._roots)

    def root_of(self, module: nn.Module) -> nn.Module | None:
        """Return the root below which a module was named first, None if that is gone."""
        ref = self._root_of.get(module)
        return None if ref is None else ref()

    def has_main(self) -> bool:
        """Return whether *the* root has been met."""
        return self._has_main

    def adopt(self, root: nn.Module, *, is_copy: bool = False) -> bool:
        """Name a module that is called at the top level; return whether it is new.

        Args:
            root: the module.
            is_copy: it is a copy of another root and never *the* root.
        """
        if root in self._paths or root in self._wrappers:
            return False
        self._name_tree(root, self._label(root, is_copy))
        self._roots.append(weakref.ref(root))
        return True

    def take_over(self, root: nn.Module) -> bool:
        """Make a module *the* root if the one that was taken for it is a part; return whether so.

        What lies in it is named anew.
        """
        if root in self._paths or root in self._wrappers or _unwrapped(root) in self._paths:
            return False
        parts = set(map(id, root.modules()))
        inner = [part for part in self.roots() if id(part) in parts]
        if not any(self._paths.get(part) == "" for part in inner):
            return False
        self._name_tree(root, "", anew=True)
        self._roots = [weakref.ref(r) for r in (root, *self.roots()) if r not in inner]
        return True

    def path(self, module: nn.Module, parent: str) -> str:
        """Return a module's path; one added since its root was named is looked for anew."""
        path = self._paths.get(module)
        if path is None:
            for root in self.roots():
                self._name_tree(root, self._paths.get(root) or "")
            path = self._paths.get(module)
        if path is None:  # Made on the fly: no root's tree holds it.
            path = join(parent, f"~{type(module).__name__}")
            self._paths.put(module, path)
        return path

    def is_wrapper(self, module: nn.Module) -> bool:
        """Return whether a module only wraps another whose calls are seen (DDP, FSDP, checkpoint).

        What torch.compile returns wraps a module whose calls are *not* seen: it stands for it.
        """
        return module in self._wrappers and not is_compiled(module)

    def modules(self, root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield (path, module) of a root's tree once each, wrappers left out."""
        for module in root.modules():
            if module not in self._wrappers:
                yield self.path(module, ""), module

    def _label(self, root: nn.Module, is_copy: bool) -> str:
        trainable = any(p.requires_grad for p in root.parameters())
        if trainable and not is_copy and not self._has_main:
            self._has_main = True
            return ""
        label = f"~{type(root).__name__}"
        self._labels[label] += 1
        count = self._labels[label]
        return label if count == 1 else f"{label}.{count}"

    def _name_tree(self, root: nn.Module, path: str, *, anew: bool = False) -> None:
        todo: list[tuple[nn.Module, str]] = [(root, path)]
        seen = set()
        while todo:
            module, path = todo.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            if anew or self.root_of(module) is None:
                self._root_of.put(module, weakref.ref(root))
            wrapped = _wrapped(module)
            if wrapped is not None:
                self._wrappers.put(module, True)
            if (wrapped is None or is_compiled(module)) and (anew or module not in self._paths):
                self._paths.put(module, path)
            children = [(c, n) for n, c in module._modules.items() if c is not None]
            # Reversed, since the last one pushed is named first: a shared module gets the first
            # of its names, as in `named_modules`.
            for child, name in reversed(children):
                todo.append((child, path if child is wrapped else join(path, name)))


def join(parent: str, name: str) -> str:
    """Return the path of a child."""
    return f"{parent}.{name}" if parent else name


def below(path: str, parent: str) -> str:
    """Return a path as seen from a parent; in full if it does not lie below it."""
    return path.removeprefix(f"{parent}.") if parent else path


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module is what torch.compile made of another."""
    return _COMPILED in module._modules


def _unwrapped(module: nn.Module) -> nn.Module:
    while (wrapped := _wrapped(module)) is not None:
        module = wrapped
    return module


def _wrapped(module: nn.Module) -> nn.Module | None:
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return module.module  # type: ignore[no-any-return]
    for name in _WRAPPED:
        if name in module._modules and (child := module._modules[name]) is not None:
            return child  # A scripted module's table has no `get`.
    return None
