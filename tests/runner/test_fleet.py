from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.draws import sound_stream
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.runner.fleet import cut


def request(number: int, rows: int) -> PromptRequest:
    stream = sound_stream(0, "units", str(number), 0)
    return PromptRequest(
        f"p{number}", (1, 2), tuple(RowRequest(1.0, j, stream) for j in range(rows))
    )


@given(st.lists(st.integers(0, 60), max_size=20), st.integers(1, 9), st.integers(1, 40))
def test_units_ask_for_every_row_once_in_order(sizes: list[int], workers: int, batch: int) -> None:
    requests = [request(i, n) for i, n in enumerate(sizes)]
    units = cut(requests, workers, batch)
    got = [(r.prompt, row.trajectory) for unit in units for r in unit for row in r.rows]
    assert got == [(r.prompt, row.trajectory) for r in requests for row in r.rows]
    assert all(unit and all(part.rows for part in unit) for unit in units)
    # No unit is larger than four batches or, if rows are few, than a fourth of a worker's share.
    most = min(4 * batch, max(1, sum(sizes) // (4 * workers)))
    assert all(sum(len(part.rows) for part in unit) <= most for unit in units)


@given(st.integers(1, 30), st.integers(1, 8))
def test_a_prompt_that_fits_a_unit_is_read_once(prompts: int, rows: int) -> None:
    units = cut([request(i, rows) for i in range(prompts)], workers=1, batch=8)
    if rows <= max(1, prompts * rows // 4):
        assert sum(len(unit) for unit in units) == prompts
