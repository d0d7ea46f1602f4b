"""A row that stopped: what does the log say of its budget at the end?"""

from common import TEXTS, factory, logged, say, write

K, T = 0.5, 120
decoder = factory(use_prefix_debt=False)
rows, entries, late = [], 0, 0
for seed in range(3):
    written = write(decoder, TEXTS, K, T, seed)
    stop = decoder.tokenizer.eos_token_id
    for row, tokens in enumerate(written.tolist()):
        length = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        reported = logged(decoder, "budget_so_far", row)[-1]
        rows.append((reported / (K * length), length, reported))
        entries, late = entries + len(decoder.kl_stats_history), late + len(tokens) - length
ratio, length, reported = max(rows)
say(
    k=K,
    rows=len(rows),
    rows_with_a_larger_budget_than_their_own=sum(r > 1.001 for r, *_ in rows),
    worst_length=length,
    worst_own_budget=K * length,
    worst_reported=reported,
    share_of_logged_steps_after_the_stop=late / entries,
)
