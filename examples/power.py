"""Says how many trajectories show a fault of a given rate, before a GPU is paid for.

    python examples/power.py 0.01 0.002

Loads no models. Rates are shares of trajectories; 1 %, 0.5 % and 0.1 % if left out.
"""

import math
import sys

import nafaudit

CONFIDENCE = 0.95


def executions(rate: float) -> int:
    """Returns how many trajectories show at least one violation with that confidence."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-rate))


def main(rates: list[float]) -> None:
    # An audit of the embedded pair; for others give what `nafaudit.audit` takes, and gpu="h100"
    # for memory and time by data sheet. seconds=0: nothing is timed here.
    usual = nafaudit.plan(k=1.0, seconds=0)
    print(
        f"as it is: {usual.per_budget} trajectories of {usual.prompts} prompts; if none violates,"
    )
    print(f"fewer than {usual.trajectory_rate:.2%} of trajectories do, at 95 % confidence\n")

    print("fault of   trajectories   per prompt   tokens at most   0 seen: below")
    for rate in rates:
        per_prompt = math.ceil(executions(rate) / usual.prompts)
        made = nafaudit.plan(k=1.0, trajectories=per_prompt, seconds=0)
        # The same from a list of 0 and 1, one per trajectory, as it will be seen.
        seen = nafaudit.bound("clopper-pearson", [0.0] * made.per_budget, delta=1 - CONFIDENCE)
        print(
            f"{rate:8.2%}   {executions(rate):12}   {per_prompt:10}   {made.tokens:14,}"
            f"   {seen.value:13.3%}"
        )
    print(f"\nprompts that fail always are seen by prompts: {usual.prompts} of them show faults of")
    print(f"{usual.prompt_rate:.1%} of prompts, however many trajectories each has")


if __name__ == "__main__":
    main([float(one) for one in sys.argv[1:]] or [0.01, 0.005, 0.001])
