"""Panels, alerts and the runbook name only metrics and commands that exist. Each metric has a panel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from rq_core.cli.root import root
from rq_core.metrics.alerts import ALERTS, Alert
from rq_core.metrics.table import BY_NAME, FAMILIES
from scripts.docs import panels

DOCS = Path(__file__).parents[2] / "docs"
SAMPLES = {
    name
    for family in FAMILIES
    for name in (
        [f"{family.name}_bucket", f"{family.name}_sum", f"{family.name}_count"]
        if family.kind == "histogram"
        else [family.name]
    )
}


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\brqc_\w+", expression))


def test_every_metric_in_a_panel_or_an_alert_exists() -> None:
    used = [*panels.expressions(), *(alert.expr for alert in ALERTS)]

    assert {name for each in used for name in names_in(each)} <= SAMPLES


def test_every_metric_is_shown_by_a_panel() -> None:
    shown = {name for each in panels.expressions() for name in names_in(each)}

    assert {re.sub("_bucket$", "", name) for name in shown} == set(BY_NAME)


def test_every_label_in_an_expression_belongs_to_its_metric() -> None:
    used = [*panels.expressions(), *(alert.expr for alert in ALERTS)]
    asked = {
        (re.sub("_bucket$", "", name), label)
        for each in used
        for name, chosen in re.findall(r"\b(rqc_\w+)\{([^}]*)\}", each)
        for label in re.findall(r"(\w+)=~?", chosen)
    }

    assert asked
    assert {(name, label) for name, label in asked if label not in BY_NAME[name].labels} == set()


def test_the_dashboard_and_rules_files_match_the_code() -> None:
    dashboard = json.loads((DOCS / "grafana/rq-core.json").read_text())
    rules = yaml.safe_load((DOCS / "grafana/alerts.yml").read_text())
    (group,) = rules["groups"]

    targets = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    assert targets == panels.expressions()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert {rule["alert"]: rule["expr"].strip() for rule in group["rules"]} == {
        alert.name: alert.expr for alert in ALERTS
    }
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert len({(at["x"], at["y"]) for at in places}) == len(places)


def test_every_alert_has_a_section_in_the_runbook() -> None:
    page = (DOCS / "how-to/alerts.md").read_text()
    rules = yaml.safe_load((DOCS / "grafana/alerts.yml").read_text())

    heads = {re.sub(r"\W+", "-", h.lower()) for h in re.findall(r"^## (.+)$", page, re.MULTILINE)}
    links = [rule["annotations"]["runbook"] for rule in rules["groups"][0]["rules"]]
    assert {link.partition("#")[2] for link in links} == heads
    assert len(links) == len(set(links)) == len(ALERTS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_command_of_the_runbook_exists(alert: Alert) -> None:
    """Checks the commands of rq-core with their options."""
    typed = [line for line in alert.look if line.startswith("rq-core ")]
    typed += re.findall(r"`(rq-core [^`]+)`", " ".join(alert.do.split()))

    for line in typed:
        words = line.split()[1:]
        command: Any = root
        context = click.Context(root)
        while isinstance(command, click.Group) and words:
            found = command.get_command(context, words.pop(0))
            assert found is not None, line
            command = found
        options = {name for each in command.params for name in each.opts}
        assert {word for word in words if word.startswith("-")} <= options, line
        assert not isinstance(command, click.Group), line
