"""`python -m dev.dashboard FILE`: the Grafana dashboard, made of a description that people can read and change."""
