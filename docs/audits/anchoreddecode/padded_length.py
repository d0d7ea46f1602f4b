"""A batch in which every row is padded: how many tokens come of ten?"""

import torch
from common import TEXTS, factory, say
from transformers import GenerationConfig

decoder = factory(use_prefix_debt=False)
ids = decoder.tokenizer(TEXTS[0])["input_ids"]
pad = decoder.tokenizer.pad_token_id
found = []
for spare in (0, 4, 8):
    row = torch.tensor([[pad] * spare + ids])
    mask = torch.tensor([[0] * spare + [1] * len(ids)])
    written = decoder.generate(
        input_ids=row,
        attention_mask=mask,
        k_radius=1.0,
        seed=3,
        generation_config=GenerationConfig(
            do_sample=True, temperature=1.0, max_new_tokens=10, pad_token_id=pad
        ),
    )
    found.append(int(written.sequences.shape[1] - row.shape[1]))
say(asked=10, tokens_with_0_4_8_pads=found)
