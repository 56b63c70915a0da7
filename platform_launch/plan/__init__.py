"""Turns a request and facts into choices, and choices into a plan. Pure functions only."""
