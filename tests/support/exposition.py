"""What metrics say, as a scrape reads it."""

from prometheus_client.parser import text_string_to_metric_families

from balancer.server.metrics import Metrics

Samples = dict[tuple[str, ...], float]
"""Values by those of the labels, in the order of the labels' names."""


def samples(metrics: Metrics, name: str) -> Samples:
    families = text_string_to_metric_families(metrics.exposition().decode())
    found = (sample for family in families for sample in family.samples if sample.name == name)
    return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in found}


def counted(metrics: Metrics, name: str) -> Samples:
    """As `samples`, without those that are 0."""
    return {labels: value for labels, value in samples(metrics, name).items() if value}
