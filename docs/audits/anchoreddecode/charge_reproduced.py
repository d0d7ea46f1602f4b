"""At temperature 1, one row at a time: is what it charges what the models say?"""

from common import TEXTS, divergence, factory, law, logged, say, write

decoder = factory()
worst, over, steps, outputs = 0.0, -float("inf"), 0, 0
for text in TEXTS:
    for seed in range(3):
        output = write(decoder, [text], 0.5, 48, seed)[0].tolist()
        prompt = decoder.tokenizer(text)["input_ids"]
        safe, risky = (law(m, prompt, output) for m in (decoder.safe_model, decoder.risky_model))
        for step, theta in enumerate(logged(decoder, "bd")[: len(output)]):
            mixed = ((1 - theta) * safe[step] + theta * risky[step]).log_softmax(-1)
            charge = divergence(mixed, safe[step]).item()
            worst = max(worst, abs(charge - logged(decoder, "kl_to_safe")[step]))
            over = max(over, charge - logged(decoder, "k_t")[step])
            steps += 1
        outputs += 1
say(outputs=outputs, steps=steps, largest_difference=worst, largest_excess_over_allowance=over)
