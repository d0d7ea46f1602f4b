from __future__ import annotations

import pytest

from nafaudit.core.draws import paper_stream, row_stream, sound_stream
from nafaudit.core.errors import InputError


def test_a_protocol_decides_the_key_of_a_rows_draws() -> None:
    assert row_stream("sound", 3, "audit", "p", 2) == sound_stream(3, "audit", "p", 2)
    # golden/vec_seeds.csv: the third seed of this id.
    assert row_stream("paper", 0, "audit", "bookmia.00.11", 2) == paper_stream(24569)
    assert row_stream("paper", 7, "other", "bookmia.00.11", 2) == paper_stream(24569)
    with pytest.raises(InputError, match="protocol 'imported'"):
        row_stream("imported", 0, "audit", "p", 0)
