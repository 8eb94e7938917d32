"""Measurements of Rollway beside its published peers. Method, machine and numbers: README.md."""
