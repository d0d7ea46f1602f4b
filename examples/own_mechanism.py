"""Audits two rules of one's own: one keeps its allowance, the other does not.

    python examples/own_mechanism.py

Needs `pip install '.[models]'`; takes a few seconds and writes runs/keeps and runs/exceeds.
"""

import torch

import nafaudit


def mixture(safe: torch.Tensor, risky: torch.Tensor, weight: float) -> nafaudit.Served:
    """Mixes the laws (log-probabilities, a row per trajectory); the charge is KL(law, safe)."""
    law = torch.log((1 - weight) * safe.exp() + weight * risky.exp())
    charge = (law.exp() * (law - safe)).sum(-1)
    return nafaudit.Served(law, charge, torch.full_like(charge, weight))


class LargestWeight:
    """A rule that looks at its allowance."""

    def serve(
        self, prefixes: list, safe: torch.Tensor, risky: torch.Tensor, allowance: torch.Tensor
    ) -> nafaudit.Served:
        """Serves the largest of five weights that is paid for; else the safe law."""
        found = nafaudit.Served(safe, torch.zeros_like(allowance), torch.zeros_like(allowance))
        for weight in (0.05, 0.1, 0.25, 0.5, 0.9):
            tried = mixture(safe, risky, weight)
            paid = tried.charge <= allowance
            found = nafaudit.Served(
                torch.where(paid[:, None], tried.law, found.law),
                torch.where(paid, tried.charge, found.charge),
                torch.where(paid, tried.theta, found.theta),
            )
        return found


class AlwaysHalf:
    """A rule that does not."""

    def serve(
        self, prefixes: list, safe: torch.Tensor, risky: torch.Tensor, allowance: torch.Tensor
    ) -> nafaudit.Served:
        """Serves half of each law."""
        return mixture(safe, risky, 0.5)


def main() -> None:
    for rule, out in ((LargestWeight(), "runs/keeps"), (AlwaysHalf(), "runs/exceeds")):
        # Ten prompts of the embedded pair, two trajectories of each: a verdict needs 20.
        run = nafaudit.audit(
            mechanism=rule, k=0.1, limit=10, max_new_tokens=12, out=out, quiet=True
        )
        print(f"{type(rule).__name__}: {run.verdict}, {run.verdicts[1].tested}: {run.why}")
        for finding in run.verdicts[1].findings:
            if finding.verdict == "VIOLATED" and finding.witness:
                key, step = finding.witness.key, finding.witness.step
                one = run.trajectory(key.prompt, key.k, key.trajectory).steps
                print(f"  {finding.text}")
                print(f"  witness: prompt {key.prompt}, trajectory {key.trajectory}, token {step}:")
                print(f"  allowed {one.allowance[step]:.2f} nats, charged {one.charge[step]:.2f}")


if __name__ == "__main__":
    main()
