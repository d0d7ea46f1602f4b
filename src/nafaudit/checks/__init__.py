"""What a verification says, in a form that needs no models."""
