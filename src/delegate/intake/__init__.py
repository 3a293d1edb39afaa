"""Accepts work: tasks, batches, retries, messages and schedules."""
