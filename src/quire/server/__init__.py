"""What runs between applications and models."""
