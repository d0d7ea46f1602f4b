"""Finds out, before a run, by which arithmetic a row's bits depend on the row alone.

No library is trusted. Every kind of layer of both models, in its own shape and with its
own weights, is given a few rows and many, in order and mixed; the attention of a new token is tried
at every width that a row can have, that of a prompt at many sizes of a pass. Which kernel a library
takes follows from shapes, so this is a table of shapes and not a sample of numbers. What it does
not see, such as a layer that looks at its neighbours on purpose, the probe of whole rows does
(`nafaudit.engine.probe`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from nafaudit.core.numerics import VARIABLE, WANTED, ConstantRows
from nafaudit.engine.rows import BY_PRODUCTS, attend_one, whole_blocks, width_step

# Numbers of rows that are tried: all small ones, then those at which kernels use to change, up to
# what a pass over prompts has.
_COUNTS = (*range(4, 18), 20, 24, 31, 32, 33, 48, 64, 65, 128, 256, 512)
# Of layers with many weights, where a row costs.
_FEW_COUNTS = (4, 5, 6, 7, 8, 11, 16, 17, 32, 33, 64, 128)
_MANY_WEIGHTS = 1 << 22
_MIXED = (5, 8, 13, 16, 33, 64)
_ROWS_ATTENDING = (1, 2, 3, 4, 5, 8, 13, 17)
# Positions of a prompt that attend together, and how far at most: more is more of the same blocks.
_READ_TOGETHER = (16, 32, 48, 64, 128, 192, 256, 512)
_READ_WIDTH = 1024
_STRICT = 0x10000
_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")
# Two threads cut an activation at any place; widths that this divides keep their bits all the same.
_THREAD_WIDTH = 64


class Mkl(NamedTuple):
    """The state of the linear-algebra library's reproducibility.

    Attributes:
        variable: What the environment asks for.
        setting: What the library has recorded; None if it is another library.
        late: True if it did not take what was asked for; most likely torch had computed before.
    """

    variable: str
    setting: int | None
    late: bool


@cache
def mkl() -> Mkl:
    """Asks the library; the first answer stands for the whole process."""
    variable = os.environ.get(VARIABLE, "")
    setting = None
    for name in _LIBRARIES:
        path = Path(torch.__file__).parent / "lib" / name
        if path.is_file():
            asked = getattr(ctypes.CDLL(str(path)), "mkl_serv_cbwr_get", None)
            setting = None if asked is None else int(asked(-1))
    late = variable == WANTED and setting is not None and not setting & _STRICT
    return Mkl(variable, setting, late)


@dataclass(frozen=True)
class Numerics:
    """The arithmetic that a pair is decoded by.

    Attributes:
        constant: Rows of every product; None where their number does not matter.
        common: True if rows may attend over a common width; changes speed only.
        threads: Torch threads, no more than the proof allows.
        why: Why rows are constant, or threads fewer than asked for; empty if neither.
        digest: Hash of the bits that the proof saw.
    """

    constant: ConstantRows | None
    common: bool
    threads: int
    why: str
    digest: str

    @property
    def remark(self) -> str:
        """What a user should know of it; empty if there is nothing."""
        if not self.constant:
            return f"{self.why}." if self.why else ""
        return (
            f"{self.why}. So every product has a constant number of rows here "
            f"({self.constant.steps} in a step, {self.constant.prompts} positions of a prompt), "
            "which is slower: records depend neither on their batch nor on their order."
        )

    def facts(self) -> dict[str, Any]:
        """Returns what a session's line says of it."""
        said = mkl()
        return {
            VARIABLE: said.variable,
            "mkl": None if said.setting is None else hex(said.setting),
            "late": said.late,
            "constant_rows": asdict(self.constant) if self.constant else None,
            "threads": self.threads,
            "float32_products": torch.get_float32_matmul_precision(),
            "tf32": torch.backends.cudnn.allow_tf32,
            "why": self.why,
            "proof": self.digest,
        }


def numerics_of(
    models: Sequence[Any], width: int = 0, *, batch: int = 1, depends: str = ""
) -> Numerics:
    """Decides how models are run, by the proof; torch's threads are lowered where it asks so.

    Args:
        models: Those that a run decodes with.
        width: Positions per row; 0 if nothing is written, only read.
        batch: Rows decoded together. Off the CPU a pass costs the same however many rows it has, so
            there constant rows follow the batch.
        depends: Why rows must be constant, if that is known.
    """
    # Products of float32 are made in float32, on devices and processors that would round more.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    why = [depends] if depends else []
    asked = torch.get_num_threads()
    if asked > 1 and (refused := _threads_refused(models, asked, width)):
        torch.set_num_threads(1)
        why.append(refused)
    constant = bool(depends)
    if not constant and mkl().late:
        constant = True
        why.append(
            "the linear-algebra library did not take MKL_CBWR=AUTO,STRICT, most likely because "
            "torch had computed before nafaudit was imported; import nafaudit first, or set the "
            "variable before Python starts"
        )
    seen = _proofs(models, width)
    if not constant and (found := [one.depends for one in seen if one.depends]):
        constant = True
        why.append(f"a row's last bits depend on the rows computed beside it ({found[0]})")
    if constant and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        seen = _proofs(models, width)
    digest = hashlib.sha256()
    for one in seen:
        digest.update((one.at_constant if constant else one.digest).encode())
    return Numerics(
        constant=_constant(models, batch) if constant else None,
        common=all(one.common for one in seen),
        threads=torch.get_num_threads(),
        why="; ".join(why),
        digest=digest.hexdigest()[:16],
    )


def _constant(models: Sequence[Any], batch: int) -> ConstantRows:
    least = ConstantRows()
    if all(model.device.type == "cpu" for model in models):
        return least
    return ConstantRows(steps=-(-max(batch, 1) // least.steps) * least.steps)


def _threads_refused(models: Sequence[Any], threads: int, width: int) -> str:
    """Returns why this number of threads would change bits; empty if it does not."""
    if all(model.device.type != "cpu" for model in models):
        return ""
    if threads > 2:
        return f"{threads} torch threads cut work at any place; one is used"
    with _threads(1):
        alone = _proofs(models, width)
    if uneven := [one.uneven for one in alone if one.uneven]:
        return (
            f"with 2 torch threads a layer of width {uneven[0]}, not divisible by "
            f"{_THREAD_WIDTH}, would give other last bits; one is used"
        )
    if [one.digest for one in _proofs(models, width)] != [one.digest for one in alone]:
        return "2 torch threads give other last bits than one here; one is used"
    return ""


class _Layer(NamedTuple):
    """A kind of layer: its module, and the width of what it is given."""

    module: Any
    width: int
    dtype: torch.dtype

    @property
    def counts(self) -> tuple[int, ...]:
        weights = sum(p.numel() for p in self.module.parameters(recurse=False))
        return _FEW_COUNTS if weights > _MANY_WEIGHTS else _COUNTS

    def given(self, rows: int) -> Tensor:
        """Returns fixed numbers for `rows` rows, one position each."""
        numbers = _numbers(rows, self.width)
        device = next((p.device for p in self.module.parameters(recurse=False)), None)
        return numbers.to(device or "cpu", self.dtype).unsqueeze(1)


@dataclass(frozen=True)
class _Proof:
    """The observations of a model's layers, or of its attention.

    Attributes:
        depends: How a row's bits depend on the rows computed beside it; empty if they do not.
        digest: Digest of the bits.
        at_constant: Digest of the bits at constant numbers of rows.
        common: True if a common width changed no bit.
        uneven: A layer's width that two threads would cut unevenly; 0 if there is none.
    """

    depends: str
    digest: str
    at_constant: str
    common: bool = True
    uneven: int = 0


_known: WeakKeyDictionary[Any, dict[tuple[int, int], _Proof]] = WeakKeyDictionary()


def forget() -> None:
    """Discards what was proved: for tests, which change the arithmetic of a living process."""
    _known.clear()


def _proofs(models: Sequence[Any], width: int) -> list[_Proof]:
    """Returns what was seen of every model, with this number of threads."""
    found = []
    for model in models:
        known = _known.setdefault(model, {})
        for size in dict.fromkeys((0, width)):
            key = (size, torch.get_num_threads())
            if key not in known:
                known[key] = _attending(model, size) if size else _products(model)
            found.append(known[key])
    return found


@torch.inference_mode()
def _products(model: Any) -> _Proof:
    digest, at_constant, rows = hashlib.sha256(), hashlib.sha256(), ConstantRows()
    depends, layers = "", _layers(model)
    for layer in layers:
        truth, found = _rows_matter(layer.module, layer.given(max(layer.counts)), layer.counts)
        if found and not depends:
            name = type(layer.module).__name__
            depends = f"{name} {layer.width}x{truth.shape[-1]}: {found}"
        digest.update(_bytes(truth))
        for count in (rows.steps, rows.prompts):
            at_constant.update(_bytes(layer.module(layer.given(count))))
    uneven = next((layer.width for layer in layers if layer.width % _THREAD_WIDTH), 0)
    return _Proof(depends, digest.hexdigest(), at_constant.hexdigest(), uneven=uneven)


def _rows_matter(
    work: Callable[[Tensor], Tensor], given: Tensor, counts: Sequence[int]
) -> tuple[Tensor, str]:
    """Returns the outputs of all rows, and how bits depend on the rows computed beside a row.

    The text is empty if they do not.
    """
    truth = work(given)
    for count in counts:
        if not torch.equal(work(given[:count]), truth[:count]):
            return truth, f"{count} rows are not the first of {len(truth)}"
    for count in _MIXED:
        if count > len(truth):
            break
        order = _order(count).to(given.device)
        # Other slots, and other neighbours.
        if not torch.equal(work(given[:count][order]), truth[:count][order]):
            return truth, f"slots among {count} rows matter"
        if not torch.equal(work(given[-count:]), truth[-count:]):
            return truth, f"neighbours among {count} rows matter"
    return truth, ""


class _Attention(NamedTuple):
    heads: int
    shared: int
    size: int
    dtype: torch.dtype
    device: torch.device


def _attention_shape(model: Any) -> _Attention | None:
    """Returns the shape of a new token's attention; None for a model without usual heads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    # The plain kernel of another device is not called from here; the probe of whole rows sees it.
    plain = model.dtype not in BY_PRODUCTS and model.device.type != "cpu"
    if not isinstance(heads, int) or plain:
        return None
    shared = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return _Attention(heads, int(shared), int(size), model.dtype, model.device)


@torch.inference_mode()
def _attending(model: Any, width: int) -> _Proof:
    """Computes the attention of a new token, in rows of some width, and of prompt positions.

    Rows are tried at the smallest and the largest width, widths row by row: every own width against
    every wider one. The plain kernel always has the whole width.
    """
    if (shape := _attention_shape(model)) is None:
        return _Proof("", "", "")
    width = whole_blocks(width)  # as rows have them
    step = width_step(width) if shape.dtype in BY_PRODUCTS else width
    widths = [min(width, start + step) for start in range(0, width, step)]
    rows = max(_ROWS_ATTENDING)
    digest, depends = hashlib.sha256(), ""
    for own in sorted({widths[0], widths[-1]}):
        q, k, v = _attention_inputs(shape, rows, own)

        def alike(order: Tensor, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            return _attend(q[order], k[order], v[order])

        everyone = torch.arange(rows, device=shape.device)
        truth = alike(everyone)
        for count in _ROWS_ATTENDING:
            order = _order(count).to(shape.device)
            if not torch.equal(alike(everyone[:count]), truth[:count]):
                depends = depends or f"attention over {own} positions of {count} rows"
            if not torch.equal(alike(order), truth[order]):
                depends = depends or f"attention over {own} positions: slots among {count} rows"
        digest.update(_bytes(truth))
    q, k, v = _attention_inputs(shape, 1, widths[-1])
    common = True
    for number, own in enumerate(widths[:-1]):
        alone = _attend(q, k[:, :, :own], v[:, :, :own])
        for wider in widths[number + 1 :]:
            masked = _attend(q, k[:, :, :wider], v[:, :, :wider], seen=own)
            common = common and torch.equal(masked, alone)
        digest.update(_bytes(alone))
    if shape.device.type == "cpu":
        read, found = _reading(shape, min(width, _READ_WIDTH))
        digest.update(_bytes(read))
        depends = depends or found
    return _Proof(depends, digest.hexdigest(), digest.hexdigest(), common)


def _reading(shape: _Attention, width: int) -> tuple[Tensor, str]:
    """Computes what positions of two prompts attend to, and whether it follows their number."""
    count = min(width, max(_READ_TOGETHER))
    q = _numbers(2 * shape.heads * count, shape.size).view(2, shape.heads, count, shape.size)
    _, k, v = _attention_inputs(shape, 2, width)
    bias = q.new_zeros(1, 1, count, width, dtype=shape.dtype)
    bias.masked_fill_(torch.ones(count, width).triu(1).bool(), torch.finfo(shape.dtype).min)
    q = q.to(shape.dtype)

    def read(prompts: slice, at: slice) -> Tensor:
        return _plain(q[prompts, :, at], k[prompts], v[prompts], bias[:, :, at])

    both, every = slice(None), slice(None)
    truth = read(both, every)
    for size in (size for size in _READ_TOGETHER if size <= count):
        for at in (slice(size), slice(count - size, None)):
            for prompts in (both, slice(1, None)):
                if not torch.equal(read(prompts, at), truth[prompts, :, at]):
                    return truth, f"attention of {size} positions of a prompt at once"
    return truth, ""


def _attention_inputs(shape: _Attention, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    q = _numbers(rows, shape.heads * shape.size).view(rows, shape.heads, 1, shape.size)
    keys = _numbers(2 * rows * shape.shared * width, shape.size)
    k, v = keys.view(2, rows, shape.shared, width, shape.size)
    where = shape.device, shape.dtype
    return q.to(*where), k.to(*where), v.to(*where)


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: int | None = None) -> Tensor:
    batch, width = k.shape[0] * k.shape[1], k.shape[2]
    if q.dtype not in BY_PRODUCTS:
        return _plain(q, k, v, q.new_zeros(1, 1, 1, width))
    bias = q.new_zeros(batch, 1, width)
    if seen is not None:
        bias[:, :, seen:] = torch.finfo(q.dtype).min
    return attend_one(q, k, v, bias, q.shape[-1] ** -0.5)


def _plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attends by the kernel that reads prompts, with a mask for every row."""
    mask = bias.expand(len(q), *bias.shape[1:])
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
    )


@torch.inference_mode()
def _layers(model: Any) -> list[_Layer]:
    """Returns every kind of layer that maps rows to rows, seen in one small forward pass."""
    found: dict[tuple[Any, ...], _Layer] = {}

    def see(module: Any, given: tuple[Any, ...], output: Any) -> None:
        if len(given) != 1 or not all(map(_is_rows, (*given, output))):
            return
        own = tuple((name, tuple(p.shape)) for name, p in module.named_parameters(recurse=False))
        key = (type(module), own, given[0].shape[-1], given[0].dtype)
        found.setdefault(key, _Layer(module, int(given[0].shape[-1]), given[0].dtype))

    leaves = [module for module in model.modules() if not list(module.children())]
    hooks = [module.register_forward_hook(see) for module in leaves]
    try:
        ids = torch.zeros(4, 1, dtype=torch.long, device=model.device)
        model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())


def _is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.shape[:2] == (4, 1)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _numbers(rows: int, columns: int) -> Tensor:
    """Returns fixed numbers between -1 and 1, equal on every machine."""
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) * 2 - 1


def _order(count: int) -> Tensor:
    """Returns a fixed order in which hardly a row keeps its place."""
    return torch.arange(count).flip(0).roll(count // 3)


def _bytes(values: Tensor) -> bytes:
    return values.to(torch.float64).cpu().numpy().tobytes()
