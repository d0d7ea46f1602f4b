"""Proposers by a language model: asked for JSON, checked, retried, journalled, counted.

* `spec`: what `--proposer` names.
* `chat`: the two nouns, a request and an answer, and the protocol of whoever answers.
* `requests`: what is asked; `schema`: the form of an answer, sent and enforced.
* `endpoint`, `local`: who answers: a server that speaks chat completions, or Transformers here.
* `reading`: what an answer is worth: prompts, a refusal, a torn end, nonsense.
* `answers`: the journal. What a model says cannot be had again, so it is written down first.
* `proposer`: all of it behind the `Proposer` protocol; the local operators fill what is missing.
* `choose`: makes one from the settings, and finds what is wrong before a model loads.
"""
