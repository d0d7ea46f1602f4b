"""A device that is none: it computes on the CPU, and counts how often the host waits for it.

Its tensors say that they are on `meta`, so that code which asks takes the path of a GPU, but they
hold numbers. Like a GPU it refuses to mix its tensors with those of the CPU. Counted is what makes
the host wait for a GPU: reading a number, a copy back, a copy there unless it is `non_blocking`,
and every operation whose result has a size that depends on numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
_CPU = torch.device("cpu")
_ATEN = torch.ops.aten
_SIZED_BY_NUMBERS = {
    _ATEN.nonzero.default,
    _ATEN.masked_select.default,
    _ATEN._unique2.default,
    _ATEN.unique_dim.default,
    _ATEN.unique_consecutive.default,
    _ATEN.repeat_interleave.Tensor,
}
_INDEXING = {
    _ATEN.index.Tensor,
    _ATEN.index_put.default,
    _ATEN.index_put_.default,
    _ATEN._index_put_impl_.default,
}


@contextmanager
def pretended() -> Iterator[Watched]:
    """Inside, `DEVICE` is a device."""
    with torch.inference_mode(), _Making(), Watched() as watched:
        yield watched


def put(x: Tensor) -> Tensor:
    """The same numbers on the device."""
    return x if isinstance(x, _Held) else _Held(x.detach())


def put_model(model: Any) -> None:
    """Puts a model's weights there."""
    for module in model.modules():
        for name, x in module._parameters.items():
            if x is not None:
                module._parameters[name] = torch.nn.Parameter(put(x), requires_grad=False)
        for name, x in module._buffers.items():
            if x is not None:
                module._buffers[name] = put(x)


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What happens on the device.

    Attributes:
        calls: Operations that were started on it, views among them.
        moved: Bytes that they read and wrote, as if nothing stayed in a cache.
        waits: Why the host waited, and how often.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.moved = 0
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with self:  # inference mode shows operations that are made of others
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        held = [x for x in tensors if isinstance(x, _Held)]
        target = kwargs.get("device")
        arrives = target is not None and torch.device(target) == DEVICE
        if not held and not arrives:
            return func(*args, **kwargs)
        name = func.name().removeprefix("aten::")
        reads = held and target is not None and not arrives
        if reads or func is _ATEN._local_scalar_dense.default:
            self.waits[name] += 1
            return func(*tree_map(_numbers, args), **kwargs)
        if len(held) < len(tensors):
            self._both_places(func, name, tensors, kwargs)
        if func in _SIZED_BY_NUMBERS or (func in _INDEXING and _has_mask(args[1])):
            self.waits[name] += 1
        self.calls += 1
        if arrives:
            kwargs["device"] = _CPU
        given = tree_map(_numbers, (args, kwargs))
        out = func(*given[0], **given[1])
        if func._schema.is_mutable or func._schema.arguments[0].alias_info is None:  # no view
            self.moved += sum(map(_bytes, tree_leaves((given, out))))
        return args[0] if func._schema.is_mutable else tree_map(_hold, out)

    def _both_places(self, func: Any, name: str, tensors: list[Tensor], how: Any) -> None:
        if func in (_ATEN._to_copy.default, _ATEN.copy_.default):
            if not how.get("non_blocking"):
                self.waits[f"{name} there"] += 1
        elif any(x.dim() for x in tensors if not isinstance(x, _Held)):
            raise RuntimeError(f"{name} mixes tensors of the CPU and of the device.")


class _Making(TorchFunctionMode):
    """Makes a tensor of a list, and a list of a tensor, as a GPU does: on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is Tensor.tolist and isinstance(args[0], _Held):
            return args[0].cpu().tolist()
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], _Held):
            at = args[1] if isinstance(args[1], tuple) else (args[1],)
            at = tuple(_sent(x) if isinstance(x, list) else x for x in at)
            return func(args[0], at, *args[2:])
        return func(*args, **kwargs)


class _Held(Tensor):
    """A tensor of the device, with its numbers."""

    numbers: Tensor

    @staticmethod
    def __new__(cls: type[_Held], numbers: Tensor) -> _Held:
        held: _Held = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        held.numbers = numbers
        return held

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a tensor of the pretended device is used outside of it.")


def _sent(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers).to(DEVICE)


def _numbers(x: Any) -> Any:
    return x.numbers if isinstance(x, _Held) else x


def _hold(x: Any) -> Any:
    return put(x) if isinstance(x, Tensor) else x


def _bytes(x: Any) -> int:
    if not isinstance(x, Tensor):
        return 0
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


def _has_mask(indices: Any) -> bool:
    return any(x is not None and x.dtype == torch.bool for x in indices)
