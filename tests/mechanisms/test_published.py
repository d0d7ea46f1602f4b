"""Rules that promise nothing, held to their definition by slow twins."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.ledger import LikelihoodLead, Payment
from nafaudit.mechanisms.laws import kl
from nafaudit.mechanisms.published import (
    FUNCTION_WORDS,
    GRID,
    CpFuse,
    MemFree,
    TokenSwap,
    block_list,
    ids_of_words,
)
from nafaudit.mechanisms.registry import mechanism, recorded_mechanism
from nafaudit.protocols import Resources
from tests.auditor.test_shadow import random_laws

FREE = torch.full((12,), math.inf, dtype=torch.float64)


def twin_fuse(safe: np.ndarray, risky: np.ndarray, lead: float) -> np.ndarray:
    """Every pair of the grid, written out."""
    best, law = math.inf, safe
    for one in GRID:
        for other in GRID:
            x = np.where(np.isinf(safe) & np.isinf(risky), -np.inf, 0.0)
            for weight, logp in ((one, safe), (other, risky)):
                x = x + (weight * np.maximum(logp, -1e4))
            p = x - (x.max() + math.log(np.exp(x - x.max()).sum()))
            inside = p > -745
            q = np.exp(p[inside])
            gaps = [
                float((q * (p[inside] - np.maximum(logp[inside], -1e4))).sum())
                for logp in (safe, risky)
            ]
            loss = max(gaps[0], gaps[1] + lead)
            if loss < best - 1e-12:
                best, law = loss, p
    return law


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), holes=st.sampled_from([0.0, 0.2]), lead=st.floats(-30, 30))
def test_cp_fuse_is_its_grid(seed: int, holes: float, lead: float) -> None:
    safe, risky = random_laws(seed, rows=4, holes=holes)
    served = CpFuse().serve([()] * 4, safe, risky, torch.full((4,), lead, dtype=torch.float64))
    for row in range(4):
        law = twin_fuse(safe[row].numpy(), risky[row].numpy(), lead)
        mine = served.law[row].numpy()
        # Two pairs may be equally good; then both serve a law of the same objective.
        gaps = [_objective(x, safe[row].numpy(), risky[row].numpy(), lead) for x in (law, mine)]
        assert gaps[0] == pytest.approx(gaps[1], rel=1e-9, abs=1e-9)
        assert float(np.exp(mine).sum()) == pytest.approx(1, abs=1e-12)


def _objective(law: np.ndarray, safe: np.ndarray, risky: np.ndarray, lead: float) -> float:
    inside = law > -745
    q = np.exp(law[inside])
    one, other = (
        float((q * (law[inside] - np.maximum(x[inside], -1e4))).sum()) for x in (safe, risky)
    )
    return max(one, other + lead)


def test_cp_fuse_holds_back_whoever_leads() -> None:
    safe, risky = (torch.log_softmax(4.0 * row, -1) for row in torch.eye(5).double()[:2, None])
    far = torch.tensor([50.0], dtype=torch.float64)
    for lead, served, other in ((far, risky, safe), (-far, safe, risky)):
        # The other model finds the text likelier, so this one's law is served, as near as the
        # grid comes to a weight of 1: it does not have it.
        law = CpFuse().serve([()], safe, risky, lead).law
        assert kl(law, served) < kl(law, other) / 100
    assert len(GRID) == 18 and GRID[0] == 0 and GRID[9] == 2 and GRID[-1] == 10


def test_the_paths_are_added_up() -> None:
    account = LikelihoodLead().open(1.0, 0.0)
    assert account.allowance() == 0
    account.pay(Payment(0.3, 0.1, 4, gap=2.0))
    account.pay(Payment(0.3, 0.1, 4, gap=-0.5))
    assert account.allowance() == -1.5
    account.pay(Payment(0.3, 0.1, 4, gap=math.inf))
    assert account.allowance() == -1e6


@settings(max_examples=50)
@given(
    texts=st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=4),
    prefix=st.lists(st.integers(0, 4), max_size=8),
    n=st.integers(2, 4),
)
def test_memfree_completes_no_listed_gram(
    texts: list[list[int]], prefix: list[int], n: int
) -> None:
    listed = {tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1)}
    banned = {t for t in range(6) if tuple([*prefix, t][-n:]) in listed and len(prefix) >= n - 1}
    safe, risky = random_laws(len(prefix), rows=1, size=6)
    rule = MemFree(n, block_list([tuple(t) for t in texts], n))
    served = rule.serve([prefix], safe, risky, FREE[:1])
    left = [t for t in range(6) if t not in banned]
    assert {t for t in range(6) if served.law[0, t] == -math.inf} == banned
    kept = torch.softmax(risky[0, left], dim=-1)
    assert torch.allclose(served.law[0, left].exp(), kept, atol=1e-12)
    assert (served.theta[0] == 1) == (not banned)


def test_memfree_cannot_serve_nothing() -> None:
    safe, risky = random_laws(0, rows=1, size=2)
    rule = MemFree(2, block_list([(0, 1), (0, 0)], 2))
    with pytest.raises(LawError, match="forbids every token"):
        rule.serve([[0]], safe, risky, FREE[:1])


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), holes=st.sampled_from([0.0, 0.3]))
def test_tokenswap_keeps_the_mass_of_the_list(seed: int, holes: float) -> None:
    safe, risky = random_laws(seed, holes=holes)
    swapped = (1, 4, 5)
    law = TokenSwap(swapped).serve([()] * 12, safe, risky, FREE).law.exp().numpy()
    s, r = safe.exp().numpy(), risky.exp().numpy()
    for row in range(12):
        for token in range(9):
            scale = r[row, swapped].sum() / s[row, swapped].sum() if s[row, swapped].sum() else 0
            known = scale > 0 and token in swapped
            expected = scale * s[row, token] if known else r[row, token]
            assert law[row, token] == pytest.approx(expected, rel=1e-9, abs=1e-300)
        assert law[row].sum() == pytest.approx(1)


def test_words_are_found_among_pieces() -> None:
    pieces = [None, b"the", b" The", b"then", b" of\n", b"\xe2\x82", b"x"]
    assert ids_of_words(pieces, ["the", "of"]) == (1, 2, 4)
    assert len(set(FUNCTION_WORDS)) == len(FUNCTION_WORDS) == 110


def material(*passages: str) -> Resources:
    return Resources(
        [bytes([byte]) for byte in range(256)], lambda text: tuple(text.encode()), passages
    )


def test_what_a_filter_rests_on_is_in_its_name(tmp_path: Path) -> None:
    made = mechanism("memfree:n=4", DebtRule())
    names = {made.bind(material(text)).name for text in ("a passage", "another one")}
    assert len(names) == 2 and all(name.startswith("memfree:n=4@") for name in names)
    own = tmp_path / "own.txt"
    own.write_text("a passage\n")
    listed = mechanism(f"memfree:n=4,list={own}", DebtRule()).bind(material())
    assert listed.rule == made.bind(material("a passage")).rule
    words = tmp_path / "words.txt"
    words.write_text("a\n")
    swap = mechanism(f"tokenswap:words={words}", DebtRule()).bind(material()).rule
    assert swap == TokenSwap((ord("A"), ord("a")))


def test_a_recorded_filter_is_found_again_or_refused() -> None:
    name = mechanism("memfree:n=4", DebtRule()).bind(material("a passage")).name
    assert recorded_mechanism(name).bind(material("a passage")).name == name
    with pytest.raises(InputError, match="Restore the source, or the file"):
        recorded_mechanism(name).bind(material("another"))


def test_a_filter_without_its_data_is_refused() -> None:
    with pytest.raises(InputError, match="needs a block list"):
        mechanism("memfree", DebtRule()).bind(material())
    nothing = Resources([None, b"zzz"], lambda text: (), ())
    with pytest.raises(InputError, match="no token of the vocabulary"):
        mechanism("tokenswap", DebtRule()).bind(nothing)
