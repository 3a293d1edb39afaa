"""Builds the prompts for agents."""
