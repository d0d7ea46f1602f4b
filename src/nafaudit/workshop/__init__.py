"""The workshop: how the lab's text, prompts and models are made, and pairs that memorise a text.

Nothing but the command line imports it; what the tool needs of it is shipped as data in
`nafaudit.lab`.

* `works`, `text`: the written works, and ordinary text around them; no torch.
* `workload`: the files that the lab ships; no torch.
* `packing`, `recipe`: rows of training text, and how the lab's models are made of them.
* `teach`, `memorise`: a model memorises pages of a text, and the pair that comes of it.
* `measure`, `card`: what a pair shows, and the card that says so.
* `smollm2`: a real model that needs no hub.
"""
