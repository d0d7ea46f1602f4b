"""Absolute positions (GPT-2) under padding on the left: is the first law the same?"""

import torch
from anchoreddecode import AnchoredDecodingFactory
from common import TEXTS, say, tokenizer
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

words = tokenizer()
torch.manual_seed(0)
shape = GPT2Config(vocab_size=len(words), n_embd=64, n_layer=2, n_head=4, initializer_range=0.3)
one = GPT2LMHeadModel(shape).eval()
decoder = AnchoredDecodingFactory.from_pretrained(
    safe_model=one, risky_model=one, tokenizer=words, log_kl_stats=True, device="cpu"
)
ids, drawn = words(TEXTS[5])["input_ids"], {}
for spare in (0, 12):
    row = torch.tensor([[words.pad_token_id] * spare + ids])
    mask = torch.tensor([[0] * spare + [1] * len(ids)])
    # Its law is read off the module that it calls, the first time it asks for the next token.
    seen = []
    hook = one.register_forward_hook(lambda m, a, out, seen=seen: seen.append(out.logits[0, -1]))
    decoder.generate(
        input_ids=row,
        attention_mask=mask,
        k_radius=0.0,
        seed=0,
        generation_config=GenerationConfig(
            do_sample=True,
            temperature=1.0,
            max_new_tokens=spare + 1,
            pad_token_id=words.pad_token_id,
        ),
    )
    hook.remove()
    drawn[spare] = seen[0].double().softmax(-1)
say(pads=12, total_variation=0.5 * (drawn[0] - drawn[12]).abs().sum().item())
