"""The embedded world: models and text that come with the package."""
