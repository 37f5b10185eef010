"""Spans of what a job goes through, for an OpenTelemetry collector, if one is named."""
