"""The paper that this project began with: its numbers recomputed, its checklist, its protocol.

The room stands on top of the tool; nothing but the command line imports it.

* `workload`: its six files and sampling order; `files`: a run as its own files.
* `settings`, `search`, `loop`, `evaluator`, `proxy`, `kdpp`, `surrogate`, `heads`: its search on
  a pair, from settings to result; `search_view`: the same as its files and JSON.
* `defects`: what is wrong with its search, by name.
* `printed`, `claims`, `quantities`, `tables`, `recompute`, `view`: its numbers, recomputed.
* `checklist`, `checklist_run`, `checklist_paper`: its seven items, of a run and of itself.
"""
