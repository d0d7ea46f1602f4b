"""The lab: an embedded world in which a protected decoder can be audited offline in a minute.

A small pair of language models over one tokenizer: the *risky* one has memorised written works,
the *safe* one never saw their sentences, and both know the same ordinary, generated text. A second
safe anchor, ``safe2``, shows how much of a finding hangs on the choice of the anchor.

What is where:

- ``prompts``: the paper's six classes of prompts for this world, protected passages and ordinary
  text; data that ``nafaudit.workshop`` made; no torch.
- ``shipped``, ``weights/``: where the shipped models are, and pairs that were made here; no torch.
- ``tiny``: random checkpoints for tests.
- ``digests``: which bits a machine computes, beside golden ones.

Submodules are imported by name; this package imports none of them.
"""
