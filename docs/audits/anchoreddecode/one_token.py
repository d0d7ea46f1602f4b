"""A prompt of one token: its debt is a mean over nothing."""

import math

import torch
from common import factory, logged, say
from transformers import GenerationConfig

decoder = factory()
ids = torch.tensor([[decoder.tokenizer("The")["input_ids"][-1]]])
decoder.generate(
    input_ids=ids,
    attention_mask=torch.ones_like(ids),
    k_radius=1.0,
    seed=0,
    generation_config=GenerationConfig(do_sample=True, temperature=1.0, max_new_tokens=20),
)
allowances, thetas = logged(decoder, "k_t"), logged(decoder, "bd")
say(
    steps=len(allowances),
    allowances_that_are_nan=sum(math.isnan(a) for a in allowances),
    steps_served_by_the_safe_model=sum(t == 0 for t in thetas),
)
