"""do_sample=False: a point mass is served; what is charged?"""

from common import TEXTS, factory, law, logged, say, write

K, T = 0.25, 40
decoder = factory(use_prefix_debt=False)
rows = []
for text in TEXTS:
    output = write(decoder, [text], K, T, do_sample=False)[0].tolist()
    prompt = decoder.tokenizer(text)["input_ids"]
    safe = law(decoder.safe_model, prompt, output)
    # The divergence of a point mass from a law is the surprisal of its point.
    paid = -sum(safe[step, token].item() for step, token in enumerate(output))
    rows.append((paid, logged(decoder, "cum_kl_spent")[len(output) - 1], K * len(output)))
paid, charged, budget = max(rows)
say(
    k=K,
    outputs=len(rows),
    outputs_over_budget=sum(p > b for p, _, b in rows),
    worst_true=paid,
    worst_charged=charged,
    worst_budget=budget,
)
