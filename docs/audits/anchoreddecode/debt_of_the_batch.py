"""A prompt's debt, decoded alone and beside a longer prompt."""

from common import factory, logged, say, write

K = 1.0
SHORT = ("Of the three", "A baker who", "It was the", "The river rises", "She opened the letter")
LONG = "The ferry left the harbour before the fog had lifted, and nobody on the pier said a word"

decoder = factory()
rows = []
for text in SHORT:
    length = len(decoder.tokenizer(text)["input_ids"])
    write(decoder, [text], K, 2)
    alone = K - logged(decoder, "budget_so_far")[0]
    write(decoder, [text, LONG], K, 2)
    rows.append((text, length, alone, K - logged(decoder, "budget_so_far", 0)[0]))
text, length, alone, beside = max(rows, key=lambda row: abs(row[2] - row[3]))
say(
    prompts=len(rows),
    prompts_whose_debt_changes=sum(abs(a - b) > 1e-3 for *_, a, b in rows),
    largest_change_prompt=text,
    tokens=length,
    debt_alone=alone,
    debt_beside_a_longer_prompt=beside,
)
