"""Printing that a reader may walk away from: a closed pipe is nobody's fault, and no verdict."""

from __future__ import annotations

import os
import sys

import click


def echo(text: str) -> None:
    """Prints to standard output; if the reader went away (a pager, head), prints nothing more."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
