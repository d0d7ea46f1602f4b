"""What a budget is worth: certificates for protected passages."""
