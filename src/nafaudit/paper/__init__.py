"""The paper that this project began with: its numbers recomputed, its checklist, its protocol.

The room stands on top of the tool; nothing but the command line imports it.
"""
