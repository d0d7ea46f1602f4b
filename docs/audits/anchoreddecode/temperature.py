"""Temperature 0.7: against which safe model is the budget kept?"""

from common import TEXTS, divergence, factory, law, logged, say, write

K, T, TAU = 0.25, 40, 0.7
decoder = factory(use_prefix_debt=False)
charged, true, over, outputs = [], [], 0, 0
for text in TEXTS:
    for seed in range(4):
        output = write(decoder, [text], K, T, seed, temperature=TAU)[0].tolist()
        prompt = decoder.tokenizer(text)["input_ids"]
        safe, risky = (law(m, prompt, output) for m in (decoder.safe_model, decoder.risky_model))
        total = 0.0
        for step, theta in enumerate(logged(decoder, "bd")[: len(output)]):
            cold = [(one[step] / TAU).log_softmax(-1) for one in (safe, risky)]
            served = ((1 - theta) * cold[0] + theta * cold[1]).log_softmax(-1)
            total += divergence(served, safe[step]).item()
        charged.append(logged(decoder, "cum_kl_spent")[len(output) - 1])
        true.append(total)
        over += total > K * len(output)
        outputs += 1
worst = max(range(outputs), key=lambda i: true[i])
say(
    k=K,
    budget=K * T,
    temperature=TAU,
    outputs=outputs,
    outputs_over_budget_to_the_safe_model=over,
    worst_charged=charged[worst],
    worst_to_the_safe_model=true[worst],
)
