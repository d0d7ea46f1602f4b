"""What people read: a result becomes a document once, and writers make text of it."""
