"""Thin files of commands; each command imports what it needs when it runs."""
