"""Answers for CI: a JUnit file with a suite per budget and a case per finding.

The file has failures or errors exactly if the exit status is not 0. A finding that broke the
promise is a failure; what could not be decided is skipped, and the answer of the whole command,
which is the last suite, is an error then.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nafaudit.core.finding import CheckWord, Finding, Kept, Overall
from nafaudit.core.ledger import budget_name
from nafaudit.core.text import name, visible
from nafaudit.core.trajectory import Arm

if TYPE_CHECKING:
    from nafaudit.measures.audit import AuditResult
    from nafaudit.selftest.conform import Conformance
    from nafaudit.store.artifacts import Verification

_BROKEN = (Kept.VIOLATED, Kept.REFUTED, CheckWord.FAILED, "NO")
_OPEN = (Kept.INCONCLUSIVE, CheckWord.UNKNOWN)
# Characters that no XML file may have, after those that are made visible everywhere.
_NOT_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        name: What was asked.
        word: The answer.
        text: The answer in words.
        outcome: `failure`, `error`, `skipped`, or empty if it passed.
    """

    name: str
    word: str
    text: str
    outcome: str = ""


@dataclass(frozen=True)
class Suite:
    """Test cases that belong together, with facts about them."""

    name: str
    cases: Sequence[Case]
    facts: Mapping[str, str] = field(default_factory=dict)


def audit_suites(result: AuditResult, source: str) -> list[Suite]:
    """Returns a suite for each budget of an audit; baselines promise nothing that could fail."""
    fatal = [word.upper() for word in result.thresholds.fail_on]
    suites = [
        Suite(
            _arm_name(arm.arm),
            [_case(one, fatal, promises=not arm.baseline) for one in arm.findings],
            {"mechanism": arm.mechanism, "k": str(arm.k), "executions": str(arm.trajectories)}
            | {"kept": arm.kept, "tested": arm.tested, "worth": arm.worth},
        )
        for arm in result.arms
    ]
    if result.log_findings:
        suites.append(Suite("the log", [_case(one, fatal) for one in result.log_findings]))
    facts = {"source": source, "design": str(result.run.design["hash"])}
    return [*suites, _answer(result.overall, facts)]


def verification_suites(found: Verification, source: str) -> list[Suite]:
    """Returns a suite for each budget that was replayed, and one for what is of the whole run."""
    fatal = [word.upper() for word in found.thresholds.fail_on]
    groups: dict[str, list[Case]] = {}
    for one in found.findings:
        where = "the whole run" if one.arm is None else _arm_name(one.arm)
        groups.setdefault(where, []).append(_case(one.finding, fatal))
    facts = {"source": source, "replayed": str(found.trajectories)}
    suites = [Suite(where, cases) for where, cases in groups.items()]
    return [*suites, _answer(found.overall, facts)]


def conform_suites(found: Conformance) -> list[Suite]:
    """Returns the items of a contract as one suite."""
    cases = [Case(item.name, item.answer, item.text, _outcome(item.answer)) for item in found.items]
    facts = {"decoder": found.decoder, "promise": found.promise}
    return [Suite(f"contract of {found.decoder}", cases, facts), _answer(found.overall)]


def junit(command: str, suites: Iterable[Suite]) -> bytes:
    """Returns the file.

    Args:
        command: As it is named, for the classes of the cases.
        suites: From first to last.
    """
    root = ElementTree.Element("testsuites")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    for number, suite in enumerate(suites):
        counts = {
            f"{word}s" if word != "skipped" else word: str(
                sum(case.outcome == word for case in suite.cases)
            )
            for word in ("failure", "error", "skipped")
        }
        one = ElementTree.SubElement(
            root,
            "testsuite",
            {"id": str(number), "name": _token(suite.name), "package": "nafaudit"}
            | {"timestamp": now, "hostname": "localhost", "time": "0"}
            | {"tests": str(len(suite.cases)), **counts},
        )
        facts = ElementTree.SubElement(one, "properties")
        for key, value in suite.facts.items():
            ElementTree.SubElement(facts, "property", {"name": key, "value": _xml(value)})
        where = f"{command}.{_token(suite.name)}"
        for case in suite.cases:
            made = ElementTree.SubElement(
                one, "testcase", {"name": _token(case.name), "classname": where, "time": "0"}
            )
            if case.outcome == "skipped":
                ElementTree.SubElement(made, "skipped", {"message": _xml(_said(case))})
            elif case.outcome:
                about = {"message": _xml(_said(case)), "type": _token(case.word)}
                ElementTree.SubElement(made, case.outcome, about).text = _xml(_said(case))
        lines = (f"{case.name}: {_said(case)}" for case in suite.cases)
        ElementTree.SubElement(one, "system-out").text = _xml("\n".join(lines))
        ElementTree.SubElement(one, "system-err")
    ElementTree.indent(root, " ")
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(finding: Finding, fatal: Sequence[str], *, promises: bool = True) -> Case:
    text = finding.text
    if (witness := finding.witness) is not None:
        text += f" (prompt {witness.key.prompt!r}, {witness.at})"
    outcome = "failure" if finding.verdict in fatal and promises else _outcome(finding.verdict)
    if finding.verdict == Kept.VIOLATED and not promises:
        outcome = ""
    return Case(finding.check, finding.verdict, text, outcome)


def _outcome(word: str) -> str:
    return "failure" if word in _BROKEN else "skipped" if word in _OPEN else ""


def _answer(overall: Overall, facts: Mapping[str, str] | None = None) -> Suite:
    outcome = {0: "", 3: "error"}.get(overall.exit_status, "failure")
    status = {"exit_status": str(overall.exit_status)}
    case = Case("answer", overall.verdict, overall.why, outcome)
    return Suite("answer", [case], {**(facts or {}), **status})


def _arm_name(arm: Arm) -> str:
    return f"{arm.mechanism} {budget_name(arm.k)}"


def _said(case: Case) -> str:
    return f"{case.word}: {case.text}" if case.text else case.word


def _xml(text: str) -> str:
    """Returns text that an XML file may have."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", visible(text))


def _token(text: str) -> str:
    """Returns text on one line; names are cut if they are very long."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", name(text))
