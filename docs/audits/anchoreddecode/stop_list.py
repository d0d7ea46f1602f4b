"""Two stop ids, as Llama 3 Instruct declares: are they accepted?"""

import torch
from common import TEXTS, factory, say
from transformers import GenerationConfig

decoder = factory(use_prefix_debt=False)
ids = decoder.tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
try:
    decoder.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        k_radius=1.0,
        seed=0,
        generation_config=GenerationConfig(
            do_sample=True,
            temperature=1.0,
            max_new_tokens=5,
            eos_token_id=[decoder.tokenizer.eos_token_id, 5],
            pad_token_id=decoder.tokenizer.pad_token_id,
        ),
    )
    answer = "accepted"
except Exception as error:  # whatever it is, it is the finding
    answer = type(error).__name__
say(two_stop_ids=answer)
