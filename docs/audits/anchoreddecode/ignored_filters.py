"""top_k = 1 in the GenerationConfig: is it obeyed, refused or ignored?"""

from common import TEXTS, factory, say, write

decoder = factory(use_prefix_debt=False)
plain = write(decoder, TEXTS[:1], 1.0, 40, top_k=0, top_p=1.0)
same = sum(
    bool((write(decoder, TEXTS[:1], 1.0, 40, **given)[0, : plain.shape[1]] == plain[0]).all())
    for given in ({"top_k": 1}, {"top_p": 0.01}, {"top_k": 1, "top_p": 0.01})
)
say(configurations=3, same_tokens_as_without=same)
