"""One seed, one prompt: are its tokens the same alone and in a batch?"""

from common import TEXTS, factory, say, write

decoder = factory(use_prefix_debt=False)
changed = [0, 0]
for text in TEXTS:
    alone = write(decoder, [text], 1.0, 30, seed=7)[0].tolist()
    # The same prompt twice needs no padding: the models see the same numbers.
    for row, beside in enumerate(write(decoder, [text, text], 1.0, 30, seed=7).tolist()):
        changed[row] += alone != beside[: len(alone)]
say(prompts=len(TEXTS), outputs_that_change_as_first_and_as_second_row=changed)
