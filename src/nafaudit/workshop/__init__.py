"""Makes the lab's text, prompts and models, and pairs of models that memorise a text.

Only the command line imports this package; the tool reads its results as data of `nafaudit.lab`.

* `works`, `grammar`: the written works, and ordinary text; no torch.
* `workload`: the files that the lab ships; no torch.
* `packing`, `recipe`: rows of training text, and the training of the lab's models.
* `teach`, `memorise`: an adapter that memorises pages of a text, and the resulting pair.
* `pair_facts`, `card`: measurements of a pair, and its card.
* `smollm2`: a real model that needs no hub.
"""
