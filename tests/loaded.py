"""Loads and probes a pair once for all commands that tests call in one process.

A command loads its models and probes the machine anew, whatever was called before it: hundreds of
times the same here. What is kept is found again only for the same files and the same way to load
them, and for the same two models, mechanism, shape and arithmetic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary, ref

import torch

from nafaudit.engine import probe as probes
from nafaudit.engine.probe import Probe
from nafaudit.mechanisms.registry import Guarded
from nafaudit.models import pair as pairs
from nafaudit.models.pair import Pair
from nafaudit.protocols import Mechanism
from nafaudit.runner import workbench

# Pairs that are kept: those of a few files of tests.
_MOST = 12


@contextmanager
def once() -> Iterator[None]:
    """For a while, what was loaded or probed is not loaded or probed again."""
    load, reading, probe = pairs.load_pair, vars(pairs)["load_model"], probes.probe
    loaded: OrderedDict[Any, Pair] = OrderedDict()
    probed: WeakKeyDictionary[Any, dict[Any, Probe]] = WeakKeyDictionary()

    def load_once(safe: str | Path, risky: str | Path, **how: Any) -> Pair:
        stops = how.get("stop_ids")
        how["stop_ids"] = None if stops is None else tuple(stops)
        key = (_files(safe), _files(risky), *sorted(how.items()))
        # A test that sees to it that no model is loaded is told of any.
        if None in key or vars(pairs)["load_model"] is not reading:
            return load(safe, risky, **how)
        if key not in loaded:
            loaded[key] = load(safe, risky, **how)
        loaded.move_to_end(key)
        while len(loaded) > _MOST:
            loaded.popitem(last=False)
        return loaded[key]

    def probe_once(pair: Pair, mechanism: Mechanism, *given: Any, **how: Any) -> Probe:
        # A rule of a plug-in may do anything when it is asked, and tests see to what it does.
        if isinstance(mechanism.rule, Guarded):
            return probe(pair, mechanism, *given, **how)
        functional = torch.nn.functional
        arithmetic = (functional.linear, torch.addmm, functional.scaled_dot_product_attention)
        served = (mechanism.name, type(mechanism.rule), *given, *sorted(how.items()))
        key = (ref(pair.risky), *served, *arithmetic)
        known = probed.setdefault(pair.safe, {})
        if key not in known:
            known[key] = probe(pair, mechanism, *given, **how)
        return known[key]

    with (
        mock.patch.object(workbench, "load_pair", load_once),
        mock.patch.object(probes, "probe", probe_once),
    ):
        yield


def _files(checkpoint: str | Path) -> tuple[Any, ...] | None:
    """Returns what tells the files of a checkpoint from others; None if it has none here."""
    directory = Path(checkpoint)
    if not directory.is_dir():
        return None
    files = [path for path in directory.rglob("*") if path.is_file()]
    said = [(path, path.stat()) for path in sorted(files)]
    return (
        directory.resolve(),
        *((path.name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in said),
    )
