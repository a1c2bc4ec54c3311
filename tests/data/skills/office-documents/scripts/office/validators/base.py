"""What validators share."""
