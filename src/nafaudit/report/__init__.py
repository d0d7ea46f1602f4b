"""What people read: pages, figures and recomputed tables, as pure functions of numbers on disk."""
