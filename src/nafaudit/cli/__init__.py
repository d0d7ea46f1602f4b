"""One thin file per command, importing what it needs when it runs."""
