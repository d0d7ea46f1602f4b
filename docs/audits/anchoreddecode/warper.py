"""Nucleus sampling as a `logits_warper`: each model is cut on its own, before the solve."""

import math

from common import TEXTS, factory, logged, say, write
from transformers import LogitsProcessorList, TopPLogitsWarper

K, T = 0.5, 40
decoder = factory(use_prefix_debt=False)
infinite, steps = 0, 0
for text in TEXTS:
    warper = LogitsProcessorList([TopPLogitsWarper(0.9)])
    output = write(decoder, [text], K, T, logits_warper=warper)[0].tolist()
    charges = logged(decoder, "kl_to_safe")[: len(output)]
    infinite += math.isinf(sum(charges))
    steps += sum(math.isinf(charge) for charge in charges)
say(k=K, outputs=len(TEXTS), outputs_with_an_infinite_charge=infinite, such_steps=steps)
