"""Every alert: when it fires, what it means, what to look at and what to type.

The rows are in the files of ``alert_rules/``. The rules for Prometheus, the runbook and the words of
``rq-core top`` are made from them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rq_core.metrics.table import BY_NAME


class When(NamedTuple):
    """One condition on the samples of a family."""

    family: str
    comparison: Literal[">", "<", "=="]
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    within_s: int = 0
    """If given, the sample's growth in this many seconds counts, not the sample."""

    @property
    def expr(self) -> str:
        """The condition in Prometheus' language."""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels)
        chosen = f"{self.family}{{{labels}}}" if labels else self.family
        if self.within_s:
            grew = "increase" if BY_NAME[self.family].kind == "counter" else "delta"
            chosen = f"{grew}({chosen}[{_duration(self.within_s)}])"
        return f"{chosen} {self.comparison} {self.value:g}"


class Alert(NamedTuple):
    """One rule."""

    name: str
    title: str
    severity: Literal["page", "ticket"]
    """page: an operator has to look now; ticket: within a working day."""
    for_s: int
    """How long it must hold before it fires, in seconds."""
    all_of: tuple[When, ...]
    """The conditions, all of one queue if the families have that label."""
    means: str
    """A paragraph."""
    look: tuple[str, ...]
    """Commands that show more; QUEUE is the queue, and the URL behind --audit is the audit database's."""
    do: str
    """Remedies, most likely first: items of a list."""

    @property
    def expr(self) -> str:
        """The rule in Prometheus' language."""
        by_queue = all("queue" in BY_NAME[when.family].labels for when in self.all_of)
        glue = "\nand on (queue) " if by_queue else "\nand "
        return glue.join(when.expr for when in self.all_of)

    @property
    def summary(self) -> str:
        """Its meaning, on one line."""
        return " ".join(self.means.split())

    @property
    def anchor(self) -> str:
        """Its section of the runbook."""
        return self.title.lower().replace(" ", "-")


def _duration(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def _alert(row: dict[str, Any]) -> Alert:
    conditions = tuple(
        When(**when | {"labels": tuple(when.get("labels", {}).items())}) for when in row["all_of"]
    )
    return Alert(**row | {"all_of": conditions, "look": tuple(row["look"])})


_FOLDER: Final = Path(__file__).with_name("alert_rules")
_FILES: Final = ("queues", "audit", "upkeep")
"""In the order of the runbook."""

ALERTS: Final = tuple(
    _alert(row)
    for name in _FILES
    for row in tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))["alert"]
)

ALERT_BY_NAME: Final = {alert.name: alert for alert in ALERTS}
