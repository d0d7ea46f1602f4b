"""From settings to records: loads models, decodes what is missing, records it."""
