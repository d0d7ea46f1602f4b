"""The lab: an embedded world in which a protected decoder can be audited offline in a minute.

A small pair of language models over one tokenizer: the *risky* one has memorised written works,
the *safe* one never saw their sentences, and both know the same ordinary, generated text. A second
safe anchor, ``safe2``, shows how much of a finding hangs on the choice of the anchor.

What is where:

- ``text/``, ``lexicon``, ``grammar``, ``babble``, ``encyclopaedia``, ``corpus``: ordinary text, as
  data and its readers; no torch.
- ``works/``, ``works``: the written works, protected and held out; no torch.
- ``workload``, ``prompts``: the paper's six classes of prompts for this world; no torch.
- ``tokenizer``, ``packing``, ``recipe``: how the models are made, bit for bit.
- ``pair``, ``weights/``: the shipped models and how to load them.
- ``measure``, ``facts``, ``card``: what the pair shows, and the card that says so.
- ``digests``: which bits a machine computes, beside golden ones.

Submodules are imported by name; this package imports none of them, so that the workload and the
works can be read where torch is not installed.
"""
