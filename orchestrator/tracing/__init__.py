"""Spans of a job's steps, for an OpenTelemetry collector, if one is named."""
