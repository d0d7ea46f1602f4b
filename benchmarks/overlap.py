"""Speed of every copying metric, against the textbook's tables and difflib.

    python -m benchmarks.overlap [--pairs 400] [--output 200] [--reference 100]

Outputs and references are prose of the lab's works. `unrelated` outputs are other prose, `copied`
ones begin with the whole reference, `edited` ones have a word of the reference exchanged every few
words, `looping` ones repeat four words of it, `shuffled` ones have its words in random order. Every
reference is prepared once and meets one output, so preparing is reported apart. Times are processor
time, the best of five passes; results are compared with the slow forms pair by pair.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.measures import twins

from benchmarks import gates
from benchmarks.results import Row, ratio
from nafaudit.measures.common_text import Reference, prepare
from nafaudit.measures.overlap import METRICS, Overlap, overlap_of, rouge_l
from nafaudit.workshop.works import passages

Texts = list[str]
EIGHT, ROUGE = "our eight metrics", "our ROUGE-L"


def corpus() -> list[str]:
    """The words of all written works, in order."""
    return " ".join(passage.text for passage in passages()).split()


def kinds(words: list[str], references: Texts, n: int, rng: random.Random) -> dict[str, Texts]:
    """Outputs of n words for every reference, by kind."""

    def prose(count: int) -> str:
        start = rng.randrange(len(words) - count)
        return " ".join(words[start : start + count])

    def edited(text: str) -> str:
        parts, every = text.split(), rng.randint(4, 12)
        parts[::every] = ["otherwise"] * len(parts[::every])
        return " ".join(parts)

    def rest(text: str) -> int:
        return max(1, n - len(text.split()))

    return {
        "unrelated": [prose(n) for _ in references],
        "copied": [f"{text} {prose(rest(text))}" for text in references],
        "edited": [f"{prose(rest(text))} {edited(text)}" for text in references],
        "looping": [" ".join((text.split()[:4] * n)[:n]) for text in references],
        "shuffled": [" ".join(rng.choices(text.split(), k=n)) for text in references],
    }


def seconds(work: Callable[[], object], passes: int = 5) -> float:
    """Least processor time of some passes."""
    found = math.inf
    for _ in range(passes):
        start = time.process_time()
        work()
        found = min(found, time.process_time() - start)
    return found


def same(a: Overlap, b: Overlap) -> bool:
    """True if every metric is equal to the last bit."""
    pairs = ((getattr(a, name), getattr(b, name)) for name in METRICS)
    return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in pairs)


def compare(outputs: Texts, references: Texts, ready: list[Reference], slow: int) -> str:
    """One line of the table: pairs per second, of the slow forms, and the ratio."""

    def fast() -> list[Overlap]:
        return [overlap_of(text, wanted) for text, wanted in zip(outputs, ready, strict=True)]

    few = list(zip(outputs, references, strict=True))[:slow]
    rate = len(outputs) / seconds(fast)
    twin = slow / seconds(lambda: [twins.measure(*pair) for pair in few], passes=1)
    found = fast()
    equal = all(same(found[i], twins.measure(*pair)) for i, pair in enumerate(few))
    return f"{rate:8.0f} {twin:8.1f} {rate / twin:6.0f} {'yes' if equal else 'NO':>6}"


def rows(rounds: int, pairs: int = 30) -> Iterator[Row]:
    """The rows of `python -m benchmarks`: rouge-score's ROUGE-L against all of ours.

    It is given our words (lower-cased, split at white space), and must find what we find.
    """
    from rouge_score.rouge_scorer import RougeScorer

    class Words:
        def tokenize(self, text: str) -> list[str]:
            return text.lower().split()

    scorer, rng, words = RougeScorer(["rougeL"], tokenizer=Words()), random.Random(0), corpus()
    references = prose_of(words, pairs, 100, rng)
    ready = [prepare(text) for text in references]
    for name, outputs in kinds(words, references, 200, rng).items():
        asked = list(zip(outputs, references, ready, strict=True))
        scores = [scorer.score(text, output)["rougeL"] for output, text, _ in asked]
        theirs = [(score.fmeasure, score.precision, score.recall) for score in scores]
        ours = [rouge_l(output, wanted) for output, _, wanted in asked]
        works: dict[str, Callable[[str, str, Reference], object]] = {
            "rouge-score": lambda output, text, wanted: scorer.score(text, output),
            EIGHT: lambda output, text, wanted: overlap_of(output, wanted),
            ROUGE: lambda output, text, wanted: rouge_l(output, wanted),
        }
        times: dict[str, list[float]] = {work: [] for work in works}
        for _ in range(rounds):
            for work, do in works.items():
                times[work].append(seconds(partial(_each, do, asked), 1))
        yield Row(
            f"overlap: {name}",
            f"{pairs} outputs of 200 words, references of 100",
            {
                f"rouge-score/{work}": ratio(times["rouge-score"], times[work])
                for work in (EIGHT, ROUGE)
            },
            gates.same_scores(theirs, ours),
            {"cpu": times},
        )


def _each(do: Callable[..., object], asked: list[tuple[str, str, Reference]]) -> None:
    for given in asked:
        do(*given)


def prose_of(words: list[str], count: int, length: int, rng: random.Random) -> Texts:
    """References: so many pieces of prose."""
    starts = [rng.randrange(len(words) - length) for _ in range(count)]
    return [" ".join(words[i : i + length]) for i in starts]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("pairs", 400), ("output", 200), ("reference", 100), ("slow", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    out = sys.stdout.write
    rng, words = random.Random(0), corpus()
    references = prose_of(words, options.pairs, options.reference, rng)
    ready = [prepare(text) for text in references]
    out(f"{platform.machine()}, Python {platform.python_version()}, {options.pairs} pairs\n")
    out(f"{options.output} words against {options.reference}; pairs per second and core\n")
    out(f"{'outputs':<10} {'measure':>8} {'slow':>8} {'ratio':>6} {'equal':>6}\n")
    for name, outputs in kinds(words, references, options.output, rng).items():
        out(f"{name:<10} {compare(outputs, references, ready, min(options.slow, options.pairs))}\n")
    spent = seconds(lambda: [prepare(text) for text in references])
    out(f"preparing a reference: {spent / options.pairs * 1e6:.0f} us\n")


if __name__ == "__main__":
    main()
