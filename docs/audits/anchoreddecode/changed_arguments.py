"""Lists that the caller passes: are they the caller's afterwards?"""

from common import TEXTS, factory, say, write
from transformers import LogitsProcessorList

decoder = factory(use_prefix_debt=False)
warpers = LogitsProcessorList()
lengths = []
for _ in range(3):
    write(decoder, TEXTS[:1], 1.0, 5, temperature=0.7, logits_warper=warpers)
    lengths.append(len(warpers))
say(
    warpers_in_the_callers_list_after_each_call=lengths,
    temperatures_applied_in_the_third=lengths[-1],
)
