"""The audit of the auditor: exact worlds, faulty decoders, and what our checks make of them.

Nothing that audits imports this room, so that no check can know a fault by name.
"""
