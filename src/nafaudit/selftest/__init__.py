"""Audits the auditor: exact worlds, faulty decoders, and how often our checks catch them.

Nothing that audits imports this room, so that no check can know a fault by name.
"""
