"""Reproduces the paper that this project began with: its numbers, its checklist, its protocol.

Only the command line imports this package.

* `workload`: reads its six files in its sampling order; `files`: writes a run as its files.
* `settings`, `search`, `loop`, `evaluator`, `proxy`, `kdpp`, `surrogate`, `heads`: its search on
  a pair, from settings to result; `search_view`: its files, JSON and document.
* `defects`: faults of its search, by name.
* `printed`, `claims`, `quantities`, `tables`, `recompute`, `view`: its numbers, recomputed.
* `checklist`, `checklist_run`, `checklist_paper`: its seven items, for a run and for the paper.
"""
