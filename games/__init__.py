"""Cooperative games."""
