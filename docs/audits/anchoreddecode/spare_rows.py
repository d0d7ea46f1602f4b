"""A vocabulary padded beyond the tokenizer: can ids be drawn that mean nothing?"""

import torch
from anchoreddecode import AnchoredDecodingFactory
from common import TEXTS, say, tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

words = tokenizer()
shape = LlamaConfig(
    vocab_size=len(words) + 512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    initializer_range=0.02,
)
models = []
for seed in range(2):
    torch.manual_seed(seed)
    models.append(LlamaForCausalLM(shape).eval())
decoder = AnchoredDecodingFactory(
    safe_model=models[0], risky_model=models[1], tokenizer=words, k_radius=1.0, device="cpu"
)
ids = torch.tensor([words(TEXTS[0])["input_ids"]])
written = decoder.generate(
    input_ids=ids,
    attention_mask=torch.ones_like(ids),
    seed=0,
    generation_config=GenerationConfig(
        do_sample=True, temperature=1.0, max_new_tokens=100, pad_token_id=words.pad_token_id
    ),
).sequences[0, ids.shape[1] :]
say(tokens=len(written), tokens_outside_the_tokenizer=int((written >= len(words)).sum()))
