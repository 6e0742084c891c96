"""Metrics as Prometheus sees them: scraped over HTTP, or collected in this process."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Scrape = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""The values of the samples. The keys are the sample's name and its labels."""


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples of a text in Prometheus' format."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def exposition(collector: Collector) -> str:
    """Return the text that Prometheus gets from this collector."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def value(found: Scrape, name: str, **labels: str) -> float | None:
    """Return the value of one sample, or None if the sample is missing."""
    return found.get((name, frozenset(labels.items())))


def total(found: Scrape, name: str, **labels: str) -> float:
    """Return the sum of all samples with this name and these labels."""
    wanted = labels.items()
    return sum(
        n for (each, has), n in found.items() if each == name and wanted <= dict(has).items()
    )


def get(port: int, path: str = "/metrics") -> tuple[int, str]:
    """Return the HTTP status and the text of a page, or the status 0 if no server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def fell(before: Scrape, after: Scrape) -> dict[Any, tuple[float, float | None]]:
    """Return the counters that fell between two scrapes, and the counters that the second scrape lacks."""
    counters = {k: n for k, n in before.items() if k[0].endswith(("_total", "_bucket", "_count"))}
    return {k: (n, after.get(k)) for k, n in counters.items() if after.get(k, -1) < n}
