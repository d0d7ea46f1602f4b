"""Temperature 0.7 with a prefix debt: in which laws is the debt counted, and is the budget kept?

On the lab pair by running the decoder; on two tables of four tokens by its own solver, summed over
every output that it can write.
"""

import torch
from common import TEXTS, divergence, factory, law, logged, say, write
from torch import Tensor

K, T, TAU, N = 0.25, 40, 0.7, 5
SLACK = 1e-3  # nats; its solver is feasible up to rounding in float32


def debt(safe: Tensor, risky: Tensor, prompt: Tensor, tau: float) -> float:
    """Its rule: the mean of the N largest log-ratios of prompt tokens, none counted below 0."""
    at = torch.arange(len(prompt) - 1)
    logp = [(one[:-1] / tau).log_softmax(-1)[at, prompt[1:]] for one in (safe, risky)]
    return (logp[1] - logp[0]).topk(min(N, len(at))).values.clamp(min=0).mean().item()


def measured() -> list[tuple[float, float, float, float, float]]:
    """Of each output: the logged debt, the debt in both laws, the spend, and k times length."""
    decoder = factory()
    rows = []
    for text in TEXTS:
        prompt = decoder.tokenizer(text)["input_ids"]
        with torch.inference_mode():
            models = (decoder.safe_model, decoder.risky_model)
            logits = [one(torch.tensor([prompt])).logits[0].double() for one in models]
        ids = torch.tensor(prompt)
        own, cooled = (debt(*logits, ids, tau) for tau in (1.0, TAU))
        for seed in range(4):
            output = write(decoder, [text], K, T, seed, temperature=TAU)[0].tolist()
            claimed = K - logged(decoder, "budget_so_far")[0]
            safe, risky = (law(one, prompt, output) for one in models)
            spend = 0.0
            for step, theta in enumerate(logged(decoder, "bd")[: len(output)]):
                cold = [(one[step] / TAU).log_softmax(-1) for one in (safe, risky)]
                served = ((1 - theta) * cold[0] + theta * cold[1]).log_softmax(-1)
                spend += divergence(served, cold[0]).item()
            rows.append((claimed, own, cooled, spend, K * len(output)))
    return rows


def summed() -> dict[str, float]:
    """Divergence of all that may be written from what the cooled safe model writes."""
    prompt, k, length, size = (0, 1, 2, 1, 3), 0.4, 4, 4
    tables = torch.randn(2, size, size, dtype=torch.double, generator=torch.manual_seed(0)) * 1.5
    ids = torch.tensor(prompt)
    own, cooled = (debt(tables[0][ids], tables[1][ids], ids, tau) for tau in (1.0, TAU))
    solver = factory()
    cold = (tables / TAU).log_softmax(-1)
    # Each prefix: its last token, log q, log p of the cooled safe model, what was spent.
    nodes = [(prompt[-1], 0.0, 0.0, 0.0)]
    for step in range(length):
        last = torch.tensor([node[0] for node in nodes])
        spent = torch.tensor([node[3] for node in nodes], dtype=torch.double)
        allowance = ((step + 1) * k - own - spent).clamp(min=0)
        safe, risky = (table[last] for table in tables / TAU)
        theta = solver.solve_optimization_newton(safe, risky, allowance.float())[1].double()
        anchor = cold[0][last]
        served = ((1 - theta) * anchor + theta * cold[1][last]).log_softmax(-1)
        charge = divergence(served, anchor)
        nodes = [
            (token, q + served[i, token].item(), p + anchor[i, token].item(), s + charge[i].item())
            for i, (_, q, p, s) in enumerate(nodes)
            for token in range(size)
        ]
    q, p, spent = (torch.tensor([node[i] for node in nodes], dtype=torch.double) for i in (1, 2, 3))
    return {
        "summed_outputs": len(nodes),
        "summed_budget_k_times_length": k * length,
        "summed_budget_less_its_debt": k * length - own,
        "summed_budget_less_the_cooled_debt": k * length - cooled,
        "summed_divergence": (q.exp() * (q - p)).sum().item(),
        "summed_largest_spend": spent.max().item(),
    }


rows = measured()
worst = max(rows, key=lambda row: row[2] - row[1])
say(
    k=K,
    temperature=TAU,
    outputs=len(rows),
    largest_difference_to_the_debt_in_the_models_own_laws=max(abs(c - o) for c, o, *_ in rows),
    prompts=len({row[1] for row in rows}),
    prompts_with_a_larger_debt_in_the_cooled_laws=len({o for _, o, c, *_ in rows if c > o}),
    worst_debt=worst[0],
    worst_debt_in_the_cooled_laws=worst[2],
    outputs_over_k_times_length=sum(spend > grant + SLACK for *_, spend, grant in rows),
    outputs_over_it_less_its_own_debt=sum(
        spend > max(0.0, grant - own) + SLACK for _, own, _, spend, grant in rows
    ),
    outputs_over_it_less_the_cooled_debt=sum(
        spend > max(0.0, grant - cooled) + SLACK for *_, cooled, spend, grant in rows
    ),
    **summed(),
)
