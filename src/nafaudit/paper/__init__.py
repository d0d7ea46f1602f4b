"""The seed paper on top of the tool; nothing but the command line imports this room.

* `workload`: its six files and sampling order; `files`: a run as its own files.
* `settings`, `search`, `loop`, `evaluator`, `proxy`, `archive`, `surrogate`, `heads`: its search on
  a pair, from settings to result; `search_files`: the same as its files and JSON.
* `defects`: what is wrong with its search, by name.
"""
