"""Every alert: its condition, its meaning, the commands that show more, and the remedy.

The alerts are rows in the files of ``alert_rules/``. The rules for Prometheus, the runbook and the sentences of
``rq-core top`` are derived from these rows.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rq_core.metrics.table import BY_NAME


class When(NamedTuple):
    """A condition on the samples of one metric family. An alert fires if all its conditions hold for some time."""

    family: str
    comparison: Literal[">", "<", "=="]
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    within_s: int = 0
    """If above 0, the growth of the sample over this number of seconds is compared. If 0, the sample itself is
    compared."""

    @property
    def expr(self) -> str:
        """The condition in PromQL."""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels)
        chosen = f"{self.family}{{{labels}}}" if labels else self.family
        if self.within_s:
            grew = "increase" if BY_NAME[self.family].kind == "counter" else "delta"
            chosen = f"{grew}({chosen}[{_duration(self.within_s)}])"
        return f"{chosen} {self.comparison} {self.value:g}"


class Alert(NamedTuple):
    """One alert: its conditions, its severity, its meaning, and the remedies."""

    name: str
    title: str
    severity: Literal["page", "ticket"]
    """``page``: an operator must act now. ``ticket``: an operator must act within a working day."""
    for_s: int
    """Seconds for which the condition must hold before the alert fires."""
    all_of: tuple[When, ...]
    """The conditions, which must all hold. If all families have the label ``queue``, they must hold for the same
    queue."""
    means: str
    """The meaning of the alert, as a paragraph."""
    look: tuple[str, ...]
    """Commands that show more. QUEUE is a placeholder for the queue, and the URL after --audit is a placeholder for the
    audit database."""
    do: str
    """The remedies as items of a Markdown list, the most likely remedy first."""

    @property
    def expr(self) -> str:
        """The alert's condition in PromQL."""
        by_queue = all("queue" in BY_NAME[when.family].labels for when in self.all_of)
        glue = "\nand on (queue) " if by_queue else "\nand "
        return glue.join(when.expr for when in self.all_of)

    @property
    def summary(self) -> str:
        """The meaning of the alert, on one line."""
        return " ".join(self.means.split())

    @property
    def anchor(self) -> str:
        """The anchor of the alert's section in the runbook."""
        return self.title.lower().replace(" ", "-")


def _duration(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def _alert(row: dict[str, Any]) -> Alert:
    conditions = tuple(
        When(**when | {"labels": tuple(when.get("labels", {}).items())}) for when in row["all_of"]
    )
    return Alert(**row | {"all_of": conditions, "look": tuple(row["look"])})


_FOLDER: Final = Path(__file__).with_name("alert_rules")
_FILES: Final = ("queues", "inbox", "audit", "upkeep")
"""The files of alerts, in the order of the runbook."""

ALERTS: Final = tuple(
    _alert(row)
    for name in _FILES
    for row in tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))["alert"]
)

ALERT_BY_NAME: Final = {alert.name: alert for alert in ALERTS}
