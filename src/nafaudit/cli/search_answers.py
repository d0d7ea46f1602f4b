"""What `nafaudit search` prints: of one budget or of several; with its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable

from nafaudit.cli.progress import remark_on_machine
from nafaudit.search.paper_settings import PaperSettings
from nafaudit.search.recorder import Told
from nafaudit.search.settings import SearchSettings


def answer_search(
    settings: SearchSettings, tell: Callable[[Told], None], as_json: bool
) -> tuple[str, int]:
    """One budget, or one after the other: what to print, and the exit status."""
    from nafaudit.mechanisms.cards import verified_with
    from nafaudit.search.search import run_search
    from nafaudit.views.search import EXIT, search_document, search_json, write_result
    from nafaudit.views.terminal import terminal

    if len(settings.k) > 1:
        return _sweep(settings, tell, as_json)
    found = run_search(settings, tell)
    remark_on_machine(found.batch_free, found.remark)
    write_result(found)
    if as_json:
        return json.dumps(search_json(found), indent=2), EXIT[found.outcome]
    plugin = verified_with(settings.mechanism)
    return terminal(search_document(found, plugin)), EXIT[found.outcome]


def _sweep(
    settings: SearchSettings, tell: Callable[[Told], None], as_json: bool
) -> tuple[str, int]:
    from nafaudit.search.search import run_sweep, sweep_json, write_sweep
    from nafaudit.views.search import EXIT, sweep_document
    from nafaudit.views.terminal import terminal

    sweep = run_sweep(settings, tell)
    remark_on_machine(all(one.batch_free for one in sweep.found), sweep.found[0].remark)
    write_sweep(sweep)
    text = json.dumps(sweep_json(sweep), indent=2) if as_json else terminal(sweep_document(sweep))
    return text, EXIT[sweep.outcome]


def answer_paper(
    settings: PaperSettings, tell: Callable[[Told], None], as_json: bool
) -> tuple[str, int]:
    """The paper's search."""
    from nafaudit.cli.show_paper_search import paper_text
    from nafaudit.search.paper_result import paper_json, write_paper_result
    from nafaudit.search.paper_run import run_paper_search
    from nafaudit.views.search import EXIT

    done = run_paper_search(settings, tell)
    remark_on_machine(done.found.batch_free, done.found.remark)
    write_paper_result(done)
    text = json.dumps(paper_json(done), indent=2) if as_json else paper_text(done)
    return text, EXIT[done.found.outcome]


def described(told: Told) -> str:
    """Where a search is, as a line."""
    parts = [f"{told.stage}: {told.done}/{told.total} {told.unit}"]
    if told.tokens and told.seconds > 0:
        parts.append(f"{told.tokens / told.seconds:.0f} tokens/s")
    if told.worst >= 0:
        parts.append(f"worst utilisation {told.worst:.1%}")
    return ", ".join(parts)
