"""Engines: requests in, completions out."""
