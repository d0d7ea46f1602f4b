"""`nafaudit search`: stage 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nafaudit.cli.output import printed, remark, resumable
from nafaudit.views.progress import ProgressLine

if TYPE_CHECKING:
    from nafaudit.paper.settings import PaperSettings
    from nafaudit.search.settings import SearchSettings


def search(settings: SearchSettings | PaperSettings, *, quiet: bool, as_json: bool) -> int:
    """Can an adversary find a prompt that drives spend to the budget?

    Looks for one, confirms what it found on fresh draws, and says whether it beats its controls.
    Running the same command again resumes it. A violation becomes a bundle for nafaudit verify.

    Example: nafaudit search --k 1,3,5 --generations 1

    Example: nafaudit search --safe models/a --risky models/b --prompts prompts.jsonl
    """
    from nafaudit.answers import answer_search
    from nafaudit.mechanisms.cards import verify_options
    from nafaudit.search.settings import SearchSettings

    progress = ProgressLine(quiet)
    with resumable(progress):
        found = answer_search(settings, progress.update)
    for text in found.remarks:
        remark(text)
    result = found.result
    if not isinstance(settings, SearchSettings):
        first = result[0] if len(settings.k) > 1 else result
        then = f"nafaudit checklist {first.found.path}"
    elif len(settings.k) > 1:
        then = f"nafaudit verify {result.found[0].path}"
    else:
        then = f"nafaudit verify {result.path}{verify_options(settings.mechanism)}"
    # A terminal shows the prompts that were found.
    return printed(found, then, as_json=as_json, redact=False)
